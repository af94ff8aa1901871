//! The machine that a pickle of a state dict runs on. It builds tensors' descriptions, and calls
//! nothing.
//!
//! Every compound value is an element of one list and is known by its number there, so that a value
//! which has itself many times over takes no more memory than the pickle, and none is nested.

use super::error::TorchError;

/// Limit on instructions: about thirty for each tensor.
const MAX_INSTRUCTIONS: usize = 1 << 20;
/// Limit on values on the stack: torch.save adds a thousand tensors at once.
const MAX_STACK: usize = 1 << 16;
/// Limit on the bytes of a name.
const MAX_TEXT: usize = 1024;
/// Limit on tensors. A name or a tensor that a short pickle has many times over is copied for each.
const MAX_TENSORS: usize = 1 << 14;
/// Limit on the dimensions of a tensor.
const MAX_RANK: usize = 16;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum ElementType {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

impl ElementType {
    /// Bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }
}

/// A tensor of a state dict: some of the elements of a storage.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) storage: Storage,
    /// In elements, as the strides.
    pub(crate) offset: u64,
    /// Elements and stride of each dimension.
    pub(crate) dims: Vec<(u64, u64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Storage {
    /// The storage's number, which is its name in the archive: digits.
    pub(crate) key: String,
    pub(crate) element: ElementType,
    pub(crate) elements: u64,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    None,
    Bool,
    Int(i64),
    Float,
    Global(Global),
    /// The number of an object.
    Object(usize),
}

#[derive(Clone, Copy, Debug)]
enum Global {
    OrderedDict,
    Tensor,
    Parameter,
    Storage(ElementType),
}

#[derive(Debug)]
enum Object {
    Text(String),
    Tuple(Vec<Value>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Storage(Storage),
    Tensor(View),
}

/// Runs a pickle and returns the tensors of the dictionary that it makes.
///
/// # Errors
/// The pickle exceeds a limit, is malformed, needs more than the machine has, or makes something
/// else.
pub(crate) fn read(pickle: &[u8]) -> Result<Vec<(String, View)>, TorchError> {
    let mut machine = Machine {
        pickle,
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        objects: Vec::new(),
    };
    let made = machine.run()?;
    let not = |what: String| TorchError::NotAStateDict { what };
    let Value::Object(made) = made else { return Err(not("a single value".to_owned())) };
    let Object::Dict(items) = &machine.objects[made] else {
        return Err(not("a single value".to_owned()));
    };
    if items.len() > MAX_TENSORS {
        return Err(limit("tensors", MAX_TENSORS));
    }
    let text = |value: &Value| match value {
        Value::Object(number) => match &machine.objects[*number] {
            Object::Text(text) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    };
    let mut tensors = Vec::new();
    for (name, value) in items {
        let Some(name) = text(name) else { return Err(not("a key that is no text".to_owned())) };
        let object = match value {
            Value::Object(number) => machine.objects.get(*number),
            _ => None,
        };
        let Some(Object::Tensor(view)) = object else {
            return Err(not(format!("{name:?}, which is no tensor,")));
        };
        tensors.push((name, view.clone()));
    }
    Ok(tensors)
}

struct Machine<'a> {
    pickle: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: Vec<Option<Value>>,
    objects: Vec<Object>,
}

impl Machine<'_> {
    /// Runs to the end; returns what is on top of the stack then.
    fn run(&mut self) -> Result<Value, TorchError> {
        for _ in 0..MAX_INSTRUCTIONS {
            let at = self.at;
            let [opcode] = self.take()?;
            match opcode {
                // PROTO
                0x80 => {
                    let [version] = self.take()?;
                    if !(2..=5).contains(&version) {
                        return Err(self.malformed("its protocol is none of 2 to 5"));
                    }
                }
                // FRAME: a length that only matters to readers of streams
                0x95 => drop(self.take::<8>()?),
                // STOP
                b'.' => return self.pop(),
                // MARK
                b'(' => {
                    if self.marks.len() >= MAX_STACK {
                        return Err(limit("values on its stack", MAX_STACK));
                    }
                    self.marks.push(self.stack.len());
                }
                b'N' => self.push(Value::None)?,
                // NEWTRUE, NEWFALSE
                0x88 | 0x89 => self.push(Value::Bool)?,
                // BININT, BININT1, BININT2, LONG1, BINFLOAT
                b'J' => {
                    let number = i32::from_le_bytes(self.take()?);
                    self.push(Value::Int(number.into()))?;
                }
                b'K' => {
                    let [number] = self.take()?;
                    self.push(Value::Int(number.into()))?;
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.take()?);
                    self.push(Value::Int(number.into()))?;
                }
                0x8a => {
                    let number = self.long()?;
                    self.push(Value::Int(number))?;
                }
                b'G' => {
                    self.take::<8>()?;
                    self.push(Value::Float)?;
                }
                // BINUNICODE, SHORT_BINUNICODE
                b'X' => {
                    let len = u32::from_le_bytes(self.take()?);
                    self.text(usize::try_from(len).unwrap_or(usize::MAX))?;
                }
                0x8c => {
                    let [len] = self.take()?;
                    self.text(len.into())?;
                }
                // EMPTY_TUPLE, TUPLE, TUPLE1, TUPLE2, TUPLE3
                b')' => self.push_object(Object::Tuple(Vec::new()))?,
                b't' => {
                    let items = self.pop_to_mark()?;
                    self.push_object(Object::Tuple(items))?;
                }
                0x85..=0x87 => {
                    let mut items = Vec::new();
                    for _ in 0x85..=opcode {
                        items.insert(0, self.pop()?);
                    }
                    self.push_object(Object::Tuple(items))?;
                }
                // EMPTY_LIST, APPEND, APPENDS
                b']' => self.push_object(Object::List(Vec::new()))?,
                b'a' => {
                    let item = self.pop()?;
                    self.append([item])?;
                }
                b'e' => {
                    let items = self.pop_to_mark()?;
                    self.append(items)?;
                }
                // EMPTY_DICT, SETITEM, SETITEMS
                b'}' => self.push_object(Object::Dict(Vec::new()))?,
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set(&[key, value])?;
                }
                b'u' => {
                    let items = self.pop_to_mark()?;
                    self.set(&items)?;
                }
                // BINPUT, LONG_BINPUT, MEMOIZE, BINGET, LONG_BINGET
                b'q' => {
                    let [number] = self.take()?;
                    self.put(number.into())?;
                }
                b'r' => {
                    let number = u32::from_le_bytes(self.take()?);
                    self.put(usize::try_from(number).unwrap_or(usize::MAX))?;
                }
                0x94 => self.put(self.memo.len())?,
                b'h' => {
                    let [number] = self.take()?;
                    self.get(number.into())?;
                }
                b'j' => {
                    let number = u32::from_le_bytes(self.take()?);
                    self.get(usize::try_from(number).unwrap_or(usize::MAX))?;
                }
                // GLOBAL, STACK_GLOBAL
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.global(&module, &name)?;
                }
                0x93 => {
                    let (name, module) = (self.pop_text()?, self.pop_text()?);
                    self.global(&module, &name)?;
                }
                // BINPERSID, REDUCE, BUILD
                b'Q' => self.persistent()?,
                b'R' => self.reduce()?,
                b'b' => {
                    // Attributes of a dictionary, such as the versions of modules.
                    self.pop()?;
                    self.dict()?;
                }
                _ => return Err(TorchError::Opcode { opcode, at }),
            }
        }
        Err(limit("instructions", MAX_INSTRUCTIONS))
    }

    fn malformed(&self, what: &'static str) -> TorchError {
        TorchError::Pickle { what, at: self.at }
    }

    /// Takes bytes of the pickle.
    fn take<const N: usize>(&mut self) -> Result<[u8; N], TorchError> {
        let Some((bytes, _)) = self.pickle[self.at..].split_first_chunk() else {
            return Err(self.malformed("it ends too early"));
        };
        self.at += N;
        Ok(*bytes)
    }

    fn take_text(&mut self, len: usize) -> Result<String, TorchError> {
        if len > MAX_TEXT {
            return Err(limit("a name with bytes", MAX_TEXT));
        }
        let Some(bytes) = self.pickle[self.at..].get(..len) else {
            return Err(self.malformed("it ends too early"));
        };
        let text = core::str::from_utf8(bytes).map_err(|_| self.malformed("a name is no text"))?;
        self.at += len;
        Ok(text.to_owned())
    }

    fn text(&mut self, len: usize) -> Result<(), TorchError> {
        let text = self.take_text(len)?;
        self.push_object(Object::Text(text))
    }

    fn line(&mut self) -> Result<String, TorchError> {
        let rest = &self.pickle[self.at..];
        let within = &rest[..rest.len().min(MAX_TEXT + 1)];
        let Some(len) = within.iter().position(|byte| *byte == b'\n') else {
            return Err(self.malformed("a line does not end"));
        };
        let line = self.take_text(len)?;
        self.at += 1;
        Ok(line)
    }

    fn long(&mut self) -> Result<i64, TorchError> {
        let [len] = self.take()?;
        let mut number = 0;
        for at in 0..u32::from(len) {
            let [byte] = self.take()?;
            match at {
                0..8 => number |= i64::from(byte) << (8 * at),
                _ => return Err(limit("a number with bytes", 8)),
            }
        }
        // The last byte has the sign.
        let unused = 64 - 8 * u32::from(len);
        Ok(if len == 0 { 0 } else { number << unused >> unused })
    }

    fn push(&mut self, value: Value) -> Result<(), TorchError> {
        if self.stack.len() >= MAX_STACK {
            return Err(limit("values on its stack", MAX_STACK));
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_object(&mut self, object: Object) -> Result<(), TorchError> {
        self.objects.push(object);
        self.push(Value::Object(self.objects.len() - 1))
    }

    /// The lowest place of the stack that may be taken.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Value, TorchError> {
        match self.stack.pop() {
            Some(value) if self.stack.len() >= self.floor() => Ok(value),
            _ => Err(self.malformed("its stack is empty")),
        }
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value>, TorchError> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(self.stack.split_off(mark)),
            _ => Err(self.malformed("a mark is missing")),
        }
    }

    fn pop_object(&mut self) -> Result<usize, TorchError> {
        match self.pop()? {
            Value::Object(number) => Ok(number),
            _ => Err(self.malformed("a value is of another kind than its use")),
        }
    }

    fn pop_text(&mut self) -> Result<String, TorchError> {
        let number = self.pop_object()?;
        match &self.objects[number] {
            Object::Text(text) => Ok(text.clone()),
            _ => Err(self.malformed("a name is no text")),
        }
    }

    /// The object on top of the stack, which stays.
    fn top(&mut self) -> Result<&mut Object, TorchError> {
        match self.stack[self.floor().min(self.stack.len())..].last() {
            Some(Value::Object(number)) => Ok(&mut self.objects[*number]),
            _ => Err(self.malformed("a value is of another kind than its use")),
        }
    }

    fn dict(&mut self) -> Result<&mut Vec<(Value, Value)>, TorchError> {
        let wrong = self.malformed("a dictionary is missing");
        match self.top()? {
            Object::Dict(items) => Ok(items),
            _ => Err(wrong),
        }
    }

    /// Adds keys and values in turn to the dictionary on top of the stack.
    fn set(&mut self, items: &[Value]) -> Result<(), TorchError> {
        let wrong = self.malformed("a key has no value");
        let dict = self.dict()?;
        let (pairs, []) = items.as_chunks::<2>() else { return Err(wrong) };
        dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
        Ok(())
    }

    fn append(&mut self, items: impl IntoIterator<Item = Value>) -> Result<(), TorchError> {
        let wrong = self.malformed("a list is missing");
        match self.top()? {
            Object::List(list) => list.extend(items),
            _ => return Err(wrong),
        }
        Ok(())
    }

    fn put(&mut self, number: usize) -> Result<(), TorchError> {
        if number >= MAX_INSTRUCTIONS {
            return Err(limit("a memo", MAX_INSTRUCTIONS));
        }
        let Some(value) = self.stack.last().copied() else {
            return Err(self.malformed("its stack is empty"));
        };
        if number >= self.memo.len() {
            self.memo.resize(number + 1, None);
        }
        self.memo[number] = Some(value);
        Ok(())
    }

    fn get(&mut self, number: usize) -> Result<(), TorchError> {
        match self.memo.get(number) {
            Some(Some(value)) => self.push(*value),
            _ => Err(self.malformed("a memo is missing")),
        }
    }

    /// Pushes one of the names that are known.
    fn global(&mut self, module: &str, name: &str) -> Result<(), TorchError> {
        use ElementType as E;
        let known = match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Global::Tensor,
            ("torch._utils", "_rebuild_parameter") => Global::Parameter,
            ("torch", "DoubleStorage") => Global::Storage(E::F64),
            ("torch", "FloatStorage") => Global::Storage(E::F32),
            ("torch", "HalfStorage") => Global::Storage(E::F16),
            ("torch", "BFloat16Storage") => Global::Storage(E::Bf16),
            ("torch", "LongStorage") => Global::Storage(E::I64),
            ("torch", "IntStorage") => Global::Storage(E::I32),
            ("torch", "ShortStorage") => Global::Storage(E::I16),
            ("torch", "CharStorage") => Global::Storage(E::I8),
            ("torch", "ByteStorage") => Global::Storage(E::U8),
            ("torch", "BoolStorage") => Global::Storage(E::Bool),
            _ => return Err(TorchError::Global { name: format!("{module}.{name}") }),
        };
        self.push(Value::Global(known))
    }

    /// Replaces a description of a storage by it: `('storage', class, key, device, elements)`.
    fn persistent(&mut self) -> Result<(), TorchError> {
        let number = self.pop_object()?;
        let wrong = self.malformed("the description of a storage is wrong");
        let Object::Tuple(items) = &self.objects[number] else { return Err(wrong) };
        let [
            Value::Object(kind),
            Value::Global(Global::Storage(element)),
            Value::Object(key),
            _,
            Value::Int(elements),
        ] = items[..]
        else {
            return Err(wrong);
        };
        let (Object::Text(kind), Object::Text(key)) = (&self.objects[kind], &self.objects[key])
        else {
            return Err(wrong);
        };
        // It becomes a name in the archive, and is never one in the file system.
        let is_number = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
        let (true, true, Ok(elements)) = (kind == "storage", is_number, u64::try_from(elements))
        else {
            return Err(wrong);
        };
        let storage = Storage { key: key.clone(), element, elements };
        self.push_object(Object::Storage(storage))
    }

    /// Makes what the known functions make.
    fn reduce(&mut self) -> Result<(), TorchError> {
        let arguments = self.pop_object()?;
        let function = self.pop()?;
        let wrong = self.malformed("a function has other arguments than torch.save gives it");
        let Object::Tuple(arguments) = &self.objects[arguments] else { return Err(wrong) };
        match (function, &arguments[..]) {
            (Value::Global(Global::OrderedDict), []) => self.push_object(Object::Dict(Vec::new())),
            // Storage, offset, shape, strides; then what only training needs.
            (
                Value::Global(Global::Tensor),
                [
                    Value::Object(storage),
                    Value::Int(offset),
                    Value::Object(shape),
                    Value::Object(strides),
                    _,
                    _,
                    ..,
                ],
            ) => {
                let (Object::Storage(storage), Some(shape), Some(strides), Ok(offset)) = (
                    &self.objects[*storage],
                    self.dims(*shape),
                    self.dims(*strides),
                    u64::try_from(*offset),
                ) else {
                    return Err(wrong);
                };
                if shape.len() != strides.len() {
                    return Err(wrong);
                }
                let dims = shape.into_iter().zip(strides).collect();
                let view = View { storage: storage.clone(), offset, dims };
                self.push_object(Object::Tensor(view))
            }
            (Value::Global(Global::Parameter), [data @ Value::Object(number), _, _])
                if matches!(self.objects[*number], Object::Tensor(_)) =>
            {
                let data = *data;
                self.push(data)
            }
            _ => Err(wrong),
        }
    }

    /// A tuple of a few numbers that are not negative.
    fn dims(&self, number: usize) -> Option<Vec<u64>> {
        let Object::Tuple(items) = &self.objects[number] else { return None };
        if items.len() > MAX_RANK {
            return None;
        }
        let number = |item: &Value| match item {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        items.iter().map(number).collect()
    }
}

const fn limit(what: &'static str, limit: usize) -> TorchError {
    TorchError::Limit { what, limit: limit as u64 }
}
