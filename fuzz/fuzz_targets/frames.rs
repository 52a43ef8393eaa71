//! Any bytes, cut anywhere, as what a session writes to its control socket.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // the first byte says where the rest is cut
    let (cut, rest) = bytes.split_first().map_or((0, bytes), |(cut, rest)| (usize::from(*cut), rest));
    let (first, second) = rest.split_at(cut.min(rest.len()));
    interpreterd::sandbox::local::read_frames(&[first, second]);
});
