//! Files of weights: `projector.bin` if the first byte is even, else safetensors.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mc_c2c::{Projector, read_projector, read_projector_bin, write_projector, write_projector_bin};

fuzz_target!(|data: &[u8]| {
    let Some((first, file)) = data.split_first() else { return };
    if first % 2 == 0 {
        let Ok(projector) = read_projector_bin(file, file.len() as u64) else { return };
        let mut again = Vec::new();
        write_projector_bin(&projector, &mut again).expect("memory takes everything");
        assert_eq!(again, file);
        return;
    }
    let Ok((projector, identity)) = read_projector(file) else { return };
    let mut again = Vec::new();
    write_projector(&projector, &identity, &mut again).expect("memory takes everything");
    let (same, known): (Projector, _) = read_projector(&again).expect("it is as it was written");
    assert!(same == projector && known == identity);
});
