//! The functions' arguments are those that NVIDIA documents.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

/// The declarations of the CUDA driver API, without what they return: `CUresult`.
const DECLARATIONS: &str = "
cuInit(unsigned int)
cuDriverGetVersion(int *)
cuGetErrorName(CUresult, const char **)
cuGetErrorString(CUresult, const char **)
cuGetProcAddress(const char *, void **, int, cuuint64_t)
cuGetProcAddress_v2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *)
cuDeviceGetCount(int *)
cuDeviceGet(CUdevice *, int)
cuDeviceGetName(char *, int, CUdevice)
cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice)
cuDeviceGetUuid_v2(CUuuid *, CUdevice)
cuDeviceGetPCIBusId(char *, int, CUdevice)
cuDeviceTotalMem_v2(size_t *, CUdevice)
cuDevicePrimaryCtxRetain(CUcontext *, CUdevice)
cuDevicePrimaryCtxRelease_v2(CUdevice)
cuDevicePrimaryCtxGetState(CUdevice, unsigned int *, int *)
cuCtxPushCurrent_v2(CUcontext)
cuCtxPopCurrent_v2(CUcontext *)
cuCtxGetCurrent(CUcontext *)
cuCtxSetCurrent(CUcontext)
cuCtxGetDevice(CUdevice *)
cuCtxSynchronize()
cuCtxGetStreamPriorityRange(int *, int *)
cuMemAlloc_v2(CUdeviceptr *, size_t)
cuMemFree_v2(CUdeviceptr)
cuMemAllocManaged(CUdeviceptr *, size_t, unsigned int)
cuMemGetInfo_v2(size_t *, size_t *)
cuMemGetAddressRange_v2(CUdeviceptr *, size_t *, CUdeviceptr)
cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t)
cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream)
cuMemHostAlloc(void **, size_t, unsigned int)
cuMemFreeHost(void *)
cuMemHostRegister_v2(void *, size_t, unsigned int)
cuMemHostUnregister(void *)
cuMemHostGetDevicePointer_v2(CUdeviceptr *, void *, unsigned int)
cuMemHostGetFlags(unsigned int *, void *)
cuPointerGetAttribute(void *, CUpointer_attribute, CUdeviceptr)
cuPointerGetAttributes(unsigned int, CUpointer_attribute *, void **, CUdeviceptr)
cuStreamCreate(CUstream *, unsigned int)
cuStreamCreateWithPriority(CUstream *, unsigned int, int)
cuStreamDestroy_v2(CUstream)
cuStreamSynchronize(CUstream)
cuStreamQuery(CUstream)
cuStreamWaitEvent(CUstream, CUevent, unsigned int)
cuEventCreate(CUevent *, unsigned int)
cuEventRecord(CUevent, CUstream)
cuEventQuery(CUevent)
cuEventSynchronize(CUevent)
cuEventDestroy_v2(CUevent)
cuLaunchHostFunc(CUstream, CUhostFn, void *)
cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t)
cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t)
cuMemcpyDtoD_v2(CUdeviceptr, CUdeviceptr, size_t)
cuMemcpyHtoDAsync_v2(CUdeviceptr, const void *, size_t, CUstream)
cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, CUstream)
cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, CUstream)
cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *, CUstream)
cuMemcpyBatchAsync(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, size_t *, CUstream)
cuMemcpyBatchAsync_v2(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, CUstream)
cuIpcGetMemHandle(CUipcMemHandle *, CUdeviceptr)
cuIpcOpenMemHandle_v2(CUdeviceptr *, CUipcMemHandle, unsigned int)
cuIpcCloseMemHandle(CUdeviceptr)
cuIpcGetEventHandle(CUipcEventHandle *, CUevent)
cuIpcOpenEventHandle(CUevent *, CUipcEventHandle)
cuMemGetHandleForAddressRange(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long)
cuMemGetAllocationGranularity(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags)
cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)
cuMemRelease(CUmemGenericAllocationHandle)
cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)
cuMemAddressFree(CUdeviceptr, size_t)
cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)
cuMemUnmap(CUdeviceptr, size_t)
cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)
cuMemExportToShareableHandle(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long)
cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType)
";

/// How a type of C is passed.
fn passed(c: &str) -> &'static str {
    match c.trim() {
        "CUcontext" | "CUstream" | "CUevent" | "CUhostFn" => "pointer",
        "CUdeviceptr" | "cuuint64_t" | "unsigned long long" | "CUmemGenericAllocationHandle" => {
            "64 bits"
        }
        "size_t" => "size",
        "unsigned char" => "8 bits",
        "CUipcMemHandle" | "CUipcEventHandle" => "64 bytes",
        c if c.ends_with('*') => "pointer",
        // Enumerations, too.
        _ => "32 bits",
    }
}

/// How a type of Rust is passed.
fn passed_by_rust(rust: &str) -> &'static str {
    match rust {
        "u64" | "c_ulonglong" => "64 bits",
        "usize" => "size",
        "u8" => "8 bits",
        "c_int" | "c_uint" => "32 bits",
        "IpcHandle" => "64 bytes",
        "Handle" | "Option<HostFunction>" => "pointer",
        rust if rust.starts_with('*') => "pointer",
        rust => panic!("{rust} is not known here"),
    }
}

#[test]
fn every_function_has_the_arguments_of_its_documentation() {
    let mut declared = Vec::new();
    for line in DECLARATIONS.lines().filter(|line| !line.is_empty()) {
        let (name, arguments) = line.strip_suffix(')').unwrap().split_once('(').unwrap();
        let arguments = arguments.split(',').filter(|argument| !argument.is_empty());
        let wanted: Vec<_> = arguments.map(passed).collect();
        let found = mc_cuda_standin::SIGNATURES.iter().find(|(known, _)| *known == name);
        let (_, found) = found.unwrap_or_else(|| panic!("{name} is missing"));
        let found: Vec<_> = found.iter().map(|rust| passed_by_rust(rust)).collect();
        assert_eq!(found, wanted, "{name}");
        declared.push(name);
    }
    for (name, _) in mc_cuda_standin::SIGNATURES {
        let is_for_tests = name.starts_with("mc_standin_");
        assert!(is_for_tests || declared.contains(name), "{name} is not declared here");
    }
}

#[test]
fn structures_have_the_sizes_of_their_documentation() {
    use mc_cuda_standin::{
        AccessDescription, AllocationProperties, Copy2d, CopyAttributes, IpcHandle, Location,
    };
    assert_eq!(size_of::<IpcHandle>(), 64);
    assert_eq!(size_of::<Location>(), 8);
    assert_eq!(size_of::<CopyAttributes>(), 24);
    assert_eq!(size_of::<Copy2d>(), 128);
    assert_eq!(size_of::<AllocationProperties>(), 32);
    assert_eq!(size_of::<AccessDescription>(), 12);
}
