//! The driver's result codes.

use std::ffi::{CStr, c_int};

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) c_int);

/// How a function of the driver ends.
pub(crate) type Answer = Result<(), Code>;

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        $(#[allow(dead_code, reason = "the names of codes that only tests order")]
        pub(crate) const $name: Code = Code($number);)*

        /// The name of a code, such as `CUDA_ERROR_INVALID_VALUE`.
        pub(crate) fn name(number: c_int) -> Option<&'static CStr> {
            match number {
                0 => Some(c"CUDA_SUCCESS"),
                $($number => CStr::from_bytes_with_nul(
                    concat!("CUDA_ERROR_", stringify!($name), "\0").as_bytes(),
                ).ok(),)*
                _ => None,
            }
        }

        /// The sentence that explains a code.
        pub(crate) fn sentence(number: c_int) -> Option<&'static CStr> {
            match number {
                0 => Some(c"no error"),
                $($number => Some($text),)*
                _ => None,
            }
        }
    };
}

codes! {
    INVALID_VALUE = 1, c"invalid argument";
    OUT_OF_MEMORY = 2, c"out of memory";
    NOT_INITIALIZED = 3, c"initialization error";
    NO_DEVICE = 100, c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"invalid device ordinal";
    INVALID_CONTEXT = 201, c"invalid device context";
    MAP_FAILED = 205, c"mapping of buffer object failed";
    ECC_UNCORRECTABLE = 214, c"uncorrectable ECC error encountered";
    OPERATING_SYSTEM = 304, c"OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, c"invalid resource handle";
    NOT_FOUND = 500, c"named symbol not found";
    NOT_READY = 600, c"device not ready";
    ILLEGAL_ADDRESS = 700, c"an illegal memory access was encountered";
    LAUNCH_TIMEOUT = 702, c"the launch timed out and was terminated";
    CONTEXT_IS_DESTROYED = 709, c"context is destroyed";
    ASSERT = 710, c"device-side assert triggered";
    HOST_MEMORY_ALREADY_REGISTERED = 712, c"part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, c"pointer does not correspond to a registered memory region";
    HARDWARE_STACK_ERROR = 714, c"hardware stack error";
    ILLEGAL_INSTRUCTION = 715, c"an illegal instruction was encountered";
    MISALIGNED_ADDRESS = 716, c"misaligned address";
    INVALID_ADDRESS_SPACE = 717, c"operation not supported on global/shared address space";
    INVALID_PC = 718, c"invalid program counter";
    LAUNCH_FAILED = 719, c"unspecified launch failure";
    NOT_PERMITTED = 800, c"operation not permitted";
    NOT_SUPPORTED = 801, c"operation not supported";
    UNKNOWN = 999, c"unknown error";
}

/// Returns whether a context is dead after this code.
pub(crate) const fn is_sticky(code: Code) -> bool {
    matches!(code.0, 214 | 700 | 702 | 710 | 714..=719)
}
