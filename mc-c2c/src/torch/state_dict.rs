//! State dicts: tensors by name.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Seek};

use half::{bf16, f16};

use super::archive::Archive;
use super::error::TorchError;
use super::pickle::{self, ElementType, View};

/// Limit on the pickle, which has no elements of tensors.
const MAX_PICKLE: u64 = 16 << 20;

/// A state dict that torch.save wrote. Opening it reads the names and shapes, and
/// [`read`](Self::read) one tensor at a time. It holds storages that several tensors share, once one
/// of them was read, and no others.
#[derive(Debug)]
pub struct StateDict<R> {
    archive: Archive<R>,
    tensors: BTreeMap<String, View>,
    /// The storages of more than one tensor, by their entries; empty until they are read.
    shared: HashMap<String, Vec<u8>>,
}

/// A tensor of a state dict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The type of its elements.
    pub element: ElementType,
    /// Elements of each dimension.
    pub shape: Vec<usize>,
    /// Its elements in order, the last dimension's side by side; little-endian.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// Its elements, if they are floating-point numbers. Those of 64 bits are rounded.
    #[must_use]
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        let bytes = &self.bytes;
        Some(match self.element {
            ElementType::F64 => {
                bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect()
            }
            ElementType::F32 => {
                bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
            }
            ElementType::F16 => {
                bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
            }
            ElementType::Bf16 => {
                bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
            }
            _ => return None,
        })
    }
}

impl<R: Read + Seek> StateDict<R> {
    /// Opens a file: reads its directory and its pickle, and checks that all tensors lie in their
    /// storages.
    ///
    /// # Errors
    /// [`TorchError`]: the file is no state dict, is damaged, asks for anything but tensors, or
    /// exceeds a limit.
    pub fn open(reader: R) -> Result<Self, TorchError> {
        let mut archive = Archive::open(reader)?;
        if archive.has("byteorder") {
            within("a byte order with bytes", archive.entry_len("byteorder")?, 16)?;
            if archive.read("byteorder")? != b"little" {
                return Err(TorchError::BigEndian);
            }
        }
        within("a pickle with bytes", archive.entry_len("data.pkl")?, MAX_PICKLE)?;
        let views = pickle::read(&archive.read("data.pkl")?)?;
        let (mut elements, mut bytes, mut uses) = (0u64, 0u64, HashMap::new());
        for (name, view) in &views {
            let entry = entry(view);
            let (len, size) = (archive.entry_len(&entry)?, view.storage.element.size() as u64);
            let expected = view.storage.elements.saturating_mul(size);
            if len != expected {
                return Err(TorchError::StorageLen { entry, len, expected });
            }
            elements = elements.saturating_add(check(name, view)?);
            let uses = uses.entry(entry).or_insert(0u32);
            if *uses == 0 {
                bytes = bytes.saturating_add(len);
            }
            *uses += 1;
        }
        // Tensors may share a storage, but not so often that all of them take more than the file;
        // and entries of the archive may not share their bytes.
        within("tensors with elements", elements, archive.len())?;
        within("storages with bytes", bytes, archive.len())?;
        uses.retain(|_, uses| *uses > 1);
        let shared = uses.into_keys().map(|entry| (entry, Vec::new())).collect();
        Ok(Self { archive, tensors: views.into_iter().collect(), shared })
    }

    /// The tensors' names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns whether there is such a tensor.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// There is none of this name, its storage is damaged, or reading fails.
    pub fn read(&mut self, name: &str) -> Result<Tensor, TorchError> {
        let Some(view) = self.tensors.get(name) else {
            return Err(TorchError::NoTensor { tensor: name.to_owned() });
        };
        let entry = entry(view);
        let own;
        let storage = match self.shared.get_mut(&entry) {
            None => {
                own = self.archive.read(&entry)?;
                &own
            }
            Some(shared) => {
                if shared.is_empty() {
                    *shared = self.archive.read(&entry)?;
                }
                &*shared
            }
        };
        let shape = view.dims.iter().map(|(elements, _)| *elements as usize).collect();
        Ok(Tensor { element: view.storage.element, shape, bytes: gather(view, storage) })
    }
}

fn entry(view: &View) -> String {
    format!("data/{}", view.storage.key)
}

fn within(what: &'static str, number: u64, limit: u64) -> Result<(), TorchError> {
    if number > limit {
        return Err(TorchError::Limit { what, limit });
    }
    Ok(())
}

/// Returns a tensor's number of elements, after checking that all lie in the storage and that they
/// are no more than the storage has.
fn check(name: &str, view: &View) -> Result<u64, TorchError> {
    let wrong = |what| TorchError::View { tensor: name.to_owned(), what };
    let count = view
        .dims
        .iter()
        .try_fold(1u64, |count, (elements, _)| count.checked_mul(*elements))
        .filter(|count| *count <= view.storage.elements)
        .ok_or_else(|| wrong("has more elements than its storage"))?;
    let last = view.dims.iter().try_fold(view.offset, |last, (elements, stride)| {
        last.checked_add(elements.saturating_sub(1).checked_mul(*stride)?)
    });
    let is_inside = |last: u64| if count == 0 { true } else { last < view.storage.elements };
    if !last.is_some_and(is_inside) {
        return Err(wrong("has elements outside of its storage"));
    }
    Ok(count)
}

/// Copies a tensor's elements out of its storage. [`check`] has accepted the tensor.
fn gather(view: &View, storage: &[u8]) -> Vec<u8> {
    let size = view.storage.element.size();
    let count: u64 = view.dims.iter().map(|(elements, _)| elements).product();
    if count == 0 {
        return Vec::new();
    }
    // Trailing dimensions that lie side by side are copied at once.
    let (mut run, mut outer) = (1, &view.dims[..]);
    while let Some(((elements, stride), rest)) = outer.split_last() {
        if *elements != 1 && *stride != run {
            break;
        }
        (run, outer) = (run * elements, rest);
    }
    let bytes = run as usize * size;
    let mut out = Vec::with_capacity(count as usize * size);
    let mut index = vec![0; outer.len()];
    loop {
        let steps: u64 = index.iter().zip(outer).map(|(at, (_, stride))| at * stride).sum();
        let start = (view.offset + steps) as usize * size;
        out.extend_from_slice(&storage[start..start + bytes]);
        // The next index, the last dimension first.
        let mut dim = outer.len();
        loop {
            if dim == 0 {
                return out;
            }
            dim -= 1;
            index[dim] += 1;
            if index[dim] < outer[dim].0 {
                break;
            }
            index[dim] = 0;
        }
    }
}
