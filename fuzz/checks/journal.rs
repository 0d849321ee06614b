//! A journal of any lines: what of it is live goes into the next file, and from that into the one after it unchanged.

use bub_gateway::replay_for_fuzzing;

pub(crate) fn check(input: &[u8]) {
    let next = replay_for_fuzzing(input);
    let after = replay_for_fuzzing(&next);
    assert_eq!(
        String::from_utf8_lossy(&after),
        String::from_utf8_lossy(&next)
    );
}
