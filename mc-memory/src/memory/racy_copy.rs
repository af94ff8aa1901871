//! Copies of bytes that other threads, processes or devices may be writing meanwhile.
//!
//! A plain copy has no meaning in Rust when another thread of the process writes the same bytes,
//! raw pointers or not; nor has it in C. The copies here have one: they do what relaxed atomic
//! loads and stores of single bytes do, so a race gives a mixture of old and new bytes and nothing
//! worse. On x86-64 and 64-bit Arm they are inline assembly, whose accesses the compiler neither
//! sees nor changes, at the speed of `memcpy`. Elsewhere, and under Miri, they are those atomic
//! accesses.
//!
//! A fold is a copy that takes part of a checksum's work along: each byte is read once, and what is written is
//! what is summed.

use core::sync::atomic::{AtomicU8, Ordering};

/// Copies `len` bytes from `source` to `target`, also when the two overlap.
///
/// # Safety
/// `len` bytes from `source` must be readable, and as many from `target` writable. No reference
/// may exist that forbids to read or write them.
pub(super) unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    if target.addr().wrapping_sub(source.addr()) < len {
        // The target begins inside the source. That is rare, and may be slow.
        for at in (0..len).rev() {
            // SAFETY: both bytes are the caller's.
            unsafe { copy_byte(source.wrapping_add(at), target.wrapping_add(at)) };
        }
    } else {
        // SAFETY: the caller's promise, and no byte is written before it was read.
        unsafe { copy_forward(source, target, len) };
    }
}

/// # Safety
/// The byte at `source` must be readable, and that at `target` writable.
unsafe fn copy_byte(source: *const u8, target: *mut u8) {
    // SAFETY: any address is aligned for a byte, the caller vouches for it, and loads do not write.
    let source = unsafe { AtomicU8::from_ptr(source.cast_mut()) };
    // SAFETY: as above, and the caller vouches that it can be written.
    let target = unsafe { AtomicU8::from_ptr(target) };
    target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// # Safety
/// As for [`copy`]; and the target must not begin inside the source.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_forward(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: reads `len` bytes from `source` and writes as many from `target`, in this order, 64,
    // 8 and 1 at a time, each piece read before it is written; touches nothing else.
    unsafe {
        core::arch::asm!(
            "sub {n}, 64",
            "jb 3f",
            "2:",
            "movups {a}, [{s}]",
            "movups {b}, [{s} + 16]",
            "movups {c}, [{s} + 32]",
            "movups {e}, [{s} + 48]",
            "movups [{d}], {a}",
            "movups [{d} + 16], {b}",
            "movups [{d} + 32], {c}",
            "movups [{d} + 48], {e}",
            "add {s}, 64",
            "add {d}, 64",
            "sub {n}, 64",
            "jae 2b",
            "3:",
            "add {n}, 64 - 8",
            "jl 5f",
            "4:",
            "mov {w}, [{s}]",
            "mov [{d}], {w}",
            "add {s}, 8",
            "add {d}, 8",
            "sub {n}, 8",
            "jge 4b",
            "5:",
            "add {n}, 8",
            "jz 7f",
            "6:",
            "mov {w:l}, [{s}]",
            "mov [{d}], {w:l}",
            "add {s}, 1",
            "add {d}, 1",
            "sub {n}, 1",
            "jnz 6b",
            "7:",
            s = inout(reg) source => _,
            d = inout(reg) target => _,
            n = inout(reg) len => _,
            w = out(reg) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            e = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// # Safety
/// As for [`copy`]; and the target must not begin inside the source.
#[cfg(all(target_arch = "aarch64", not(miri)))]
unsafe fn copy_forward(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: reads `len` bytes from `source` and writes as many from `target`, in this order, 64,
    // 8 and 1 at a time, each piece read before it is written; touches nothing else.
    unsafe {
        core::arch::asm!(
            "subs {n}, {n}, #64",
            "b.lo 3f",
            "2:",
            "ldp {a:q}, {b:q}, [{s}], #32",
            "ldp {c:q}, {e:q}, [{s}], #32",
            "stp {a:q}, {b:q}, [{d}], #32",
            "stp {c:q}, {e:q}, [{d}], #32",
            "subs {n}, {n}, #64",
            "b.hs 2b",
            "3:",
            "adds {n}, {n}, #64 - 8",
            "b.lt 5f",
            "4:",
            "ldr {w}, [{s}], #8",
            "str {w}, [{d}], #8",
            "subs {n}, {n}, #8",
            "b.ge 4b",
            "5:",
            "adds {n}, {n}, #8",
            "b.eq 7f",
            "6:",
            "ldrb {w:w}, [{s}], #1",
            "strb {w:w}, [{d}], #1",
            "subs {n}, {n}, #1",
            "b.ne 6b",
            "7:",
            s = inout(reg) source => _,
            d = inout(reg) target => _,
            n = inout(reg) len => _,
            w = out(reg) _,
            a = out(vreg) _,
            b = out(vreg) _,
            c = out(vreg) _,
            e = out(vreg) _,
            options(nostack),
        );
    }
}

/// # Safety
/// As for [`copy`]; and the target must not begin inside the source.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
unsafe fn copy_forward(source: *const u8, target: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: both bytes are the caller's.
        unsafe { copy_byte(source.wrapping_add(at), target.wrapping_add(at)) };
    }
}

/// Bytes that a fold is made of, and that it leaves.
pub(super) const FOLD: usize = 256;

/// Returns whether the processor has what [`copy_folded`] needs.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) fn can_fold() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("vpclmulqdq")
}

/// Returns whether the processor has what [`copy_folded`] needs.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) const fn can_fold() -> bool {
    false
}

/// Copies `len` bytes, a positive multiple of [`FOLD`], and returns as many as that whose CRC-32C is theirs: the
/// register that they turn into is, from 0 on, the one that the copied bytes turn `register` into. Folding is
/// described in V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel, 2009.
///
/// # Safety
/// As for [`copy`]; the target must not begin inside the source; and [`can_fold`] must have returned `true`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) unsafe fn copy_folded(
    source: *const u8,
    target: *mut u8,
    len: usize,
    register: u32,
) -> [u8; FOLD] {
    debug_assert!(len > 0 && len.is_multiple_of(FOLD), "whole folds");
    /// The bits of x^2079 and x^2015 modulo the polynomial, reflected: what moves a half of 16 bytes behind the
    /// 2048 bits that follow.
    const FACTORS: [u64; 2] = [0xdcb1_7aa4, 0xb9e0_2b86];
    let mut left = [0; FOLD];
    // SAFETY: reads `len` bytes from `source` and writes as many from `target`, in this order, 256 at a time, of
    // which each 64 are read before they are written, reads FACTORS and writes `left`; touches nothing else. The
    // caller vouches for the instructions.
    unsafe {
        core::arch::asm!(
            "vbroadcasti32x4 zmm12, [{factors}]",
            "vmovd xmm13, {register:e}",
            "vmovdqu64 zmm0, [{s}]",
            "vmovdqu64 zmm1, [{s} + 64]",
            "vmovdqu64 zmm2, [{s} + 128]",
            "vmovdqu64 zmm3, [{s} + 192]",
            "vmovdqu64 [{d}], zmm0",
            "vmovdqu64 [{d} + 64], zmm1",
            "vmovdqu64 [{d} + 128], zmm2",
            "vmovdqu64 [{d} + 192], zmm3",
            "vpxorq zmm0, zmm0, zmm13",
            "jmp 3f",
            "2:",
            "vmovdqu64 zmm8, [{s}]",
            "vmovdqu64 zmm9, [{s} + 64]",
            "vmovdqu64 zmm10, [{s} + 128]",
            "vmovdqu64 zmm11, [{s} + 192]",
            "vpclmulqdq zmm4, zmm0, zmm12, 0x00",
            "vpclmulqdq zmm5, zmm1, zmm12, 0x00",
            "vpclmulqdq zmm6, zmm2, zmm12, 0x00",
            "vpclmulqdq zmm7, zmm3, zmm12, 0x00",
            "vpclmulqdq zmm0, zmm0, zmm12, 0x11",
            "vpclmulqdq zmm1, zmm1, zmm12, 0x11",
            "vpclmulqdq zmm2, zmm2, zmm12, 0x11",
            "vpclmulqdq zmm3, zmm3, zmm12, 0x11",
            "vmovdqu64 [{d}], zmm8",
            "vmovdqu64 [{d} + 64], zmm9",
            "vmovdqu64 [{d} + 128], zmm10",
            "vmovdqu64 [{d} + 192], zmm11",
            "vpternlogq zmm0, zmm4, zmm8, 0x96",
            "vpternlogq zmm1, zmm5, zmm9, 0x96",
            "vpternlogq zmm2, zmm6, zmm10, 0x96",
            "vpternlogq zmm3, zmm7, zmm11, 0x96",
            "3:",
            "add {s}, 256",
            "add {d}, 256",
            "sub {n}, 256",
            "jnz 2b",
            "vmovdqu64 [{left}], zmm0",
            "vmovdqu64 [{left} + 64], zmm1",
            "vmovdqu64 [{left} + 128], zmm2",
            "vmovdqu64 [{left} + 192], zmm3",
            "vzeroupper",
            s = inout(reg) source => _,
            d = inout(reg) target => _,
            n = inout(reg) len => _,
            register = in(reg) register,
            factors = in(reg) FACTORS.as_ptr(),
            left = in(reg) left.as_mut_ptr(),
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
    left
}

/// Never called: [`can_fold`] returns `false`.
///
/// # Safety
/// It must not be called.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) unsafe fn copy_folded(_: *const u8, _: *mut u8, _: usize, _: u32) -> [u8; FOLD] {
    unreachable!("this processor cannot fold")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that differ from their neighbours.
    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn every_length_at_every_alignment() {
        let from = pattern(400);
        for len in (0..=200).chain([255, 256, 257, 320]) {
            for (source, target) in [(0, 0), (1, 0), (0, 3), (5, 7), (8, 16), (63, 1)] {
                let mut to = vec![0xee; 400];
                // SAFETY: both ranges lie inside, and no other thread uses them.
                unsafe { copy(from[source..].as_ptr(), to[target..].as_mut_ptr(), len) };
                assert_eq!(to[target..target + len], from[source..source + len], "{len}");
                let around = to[..target].iter().chain(&to[target + len..]);
                assert!(around.into_iter().all(|&byte| byte == 0xee), "{len} {source} {target}");
            }
        }
    }

    #[test]
    fn overlapping_ranges() {
        for len in [0, 1, 7, 8, 63, 64, 65, 200] {
            for (source, target) in [(0, 0), (0, 1), (1, 0), (0, 64), (64, 0), (3, 60), (60, 3)] {
                let mut bytes = pattern(300);
                let expected = bytes[source..source + len].to_vec();
                let base = bytes.as_mut_ptr();
                // SAFETY: both ranges lie inside, and no other thread uses them.
                unsafe { copy(base.wrapping_add(source), base.wrapping_add(target), len) };
                assert_eq!(bytes[target..target + len], expected, "{len} {source} {target}");
            }
        }
    }
}
