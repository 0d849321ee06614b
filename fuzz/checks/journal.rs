//! The live records of a journal with any lines are copied to the next file, and from there
//! unchanged to the one after it.

use bub_gateway::replay_for_fuzzing;

pub(crate) fn check(input: &[u8]) {
    let next = replay_for_fuzzing(input);
    let after = replay_for_fuzzing(&next);
    assert_eq!(
        String::from_utf8_lossy(&after),
        String::from_utf8_lossy(&next)
    );
}
