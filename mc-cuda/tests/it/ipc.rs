//! Memory of a GPU that another process has.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};

use mc_cuda::{Cuda, CudaError, IpcHandle, Order};

use crate::standin::{Standin, here, run};

/// Set in the process that exports memory.
const EXPORTER: &str = "MC_CUDA_TEST_EXPORTER";

const LEN: usize = 10_000;

/// Exports 100 bytes from 50 on, and keeps them until its input ends.
fn export(standin: &Standin) {
    let device = Cuda::load().unwrap().device(1).unwrap();
    let vram = device.allocate(LEN).unwrap();
    standin.poke(vram.address(), &(0..LEN).map(|at| at as u8).collect::<Vec<_>>());
    let handle = device.export(vram.address() + 50, 100).unwrap();
    assert_eq!((handle.offset(), handle.len()), (50, 100));
    assert_eq!(handle.device(), device.uuid().unwrap());
    assert_eq!(
        device.export(vram.address() + 1, LEN),
        Err(CudaError::OutOfRange { at: 1, len: LEN, room: LEN })
    );
    assert_eq!(device.export(0x1000, 1), Err(CudaError::ForeignPointer { address: 0x1000 }));
    let own = Cuda::load().unwrap().open(&handle).unwrap_err();
    assert!(matches!(own, CudaError::NotOpened { .. }), "{own}");
    let text: String = handle.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\nhandle {text}");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    // What the importer wrote.
    assert_eq!(standin.peek(vram.address() + 60, 10), [9; 10]);
}

/// The exporting process, and what it has exported.
fn exporter(name: &str) -> (Child, ChildStdin, IpcHandle) {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(EXPORTER, "1");
    // GPUs have other numbers here.
    process.env("MC_CUDA_STANDIN", "visible=1+0");
    let mut child = process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let text = lines.find_map(|line| line.unwrap().strip_prefix("handle ").map(str::to_owned));
    let text = text.expect("the process exports memory");
    // Later lines are not read, and fit in the pipe.
    std::mem::forget(lines);
    let digits = (0..text.len()).step_by(2);
    let bytes: Vec<u8> =
        digits.map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
    let stdin = child.stdin.take().unwrap();
    (child, stdin, IpcHandle::from_bytes(&bytes).unwrap())
}

#[test]
fn a_process_reads_and_writes_memory_that_another_exports() {
    run(here!(), "forbid_legacy=1", |standin| {
        if std::env::var_os(EXPORTER).is_some() {
            return export(standin);
        }
        let (mut child, stdin, handle) = exporter(here!().trim_end_matches("::{{closure}}"));
        let cuda = Cuda::load().unwrap();
        let memory = cuda.open(&handle).unwrap();
        assert_eq!((memory.len(), memory.device().ordinal()), (100, 0), "found by its identity");
        let again = cuda.open(&handle).unwrap();
        assert_eq!(again.address(), memory.address());
        assert_eq!(standin.calls("cuIpcOpenMemHandle_v2"), 1, "an allocation is opened once");
        drop(again);
        assert_eq!(standin.calls("cuIpcCloseMemHandle"), 0);
        let copier = memory.device().copier().unwrap();
        let slot = copier.wait_slot().unwrap();
        let pieces = memory.pieces([0..10, 90..100]).unwrap();
        let (read, write) = (slot.slice(0, 20).unwrap(), slot.slice(20, 10).unwrap());
        copier.read(&pieces, &read, Order::Now).wait().unwrap();
        assert_eq!(read.to_vec(), (50..60).chain(140..150).collect::<Vec<u8>>());
        write.copy_from(0, &[9; 10]).unwrap();
        let pieces = memory.piece(10..20).unwrap();
        copier.write(&write, &pieces, Order::Now, None).wait().unwrap();
        assert!(memory.piece(90..101).is_err());
        drop(stdin);
        assert!(child.wait().unwrap().success());
        // A handle that says too much, or of a GPU that is not there.
        let mut bytes = handle.to_bytes();
        bytes[23] = 77;
        let unknown = cuda.open(&IpcHandle::from_bytes(&bytes).unwrap()).unwrap_err();
        assert!(matches!(unknown, CudaError::NoSuchDevice { .. }), "{unknown}");
        let mut bytes = handle.to_bytes();
        bytes[98] = 1;
        let long = cuda.open(&IpcHandle::from_bytes(&bytes).unwrap()).unwrap_err();
        assert!(matches!(long, CudaError::OutOfRange { at: 50, room: LEN, .. }), "{long}");
        drop((read, write, slot, pieces, memory));
    });
}

#[test]
fn memory_of_a_process_that_was_killed_stays_and_is_not_opened_anew() {
    run(here!(), "", |standin| {
        if std::env::var_os(EXPORTER).is_some() {
            return export(standin);
        }
        let (mut child, _stdin, handle) = exporter(here!().trim_end_matches("::{{closure}}"));
        let cuda = Cuda::load().unwrap();
        let memory = cuda.open(&handle).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let slot = memory.device().copier().unwrap().wait_slot().unwrap().slice(0, 100).unwrap();
        let pieces = memory.piece(0..100).unwrap();
        let copier = memory.device().copier().unwrap();
        copier.read(&pieces, &slot, Order::Now).wait().unwrap();
        assert_eq!(slot.to_vec(), (50..150).collect::<Vec<u8>>());
        drop((pieces, memory, slot));
        let gone = cuda.open(&handle).unwrap_err();
        assert!(matches!(gone, CudaError::NotOpened { .. }), "{gone}");
        assert!(gone.to_string().contains("new handle"), "{gone}");
    });
}
