//! The line reader accepts any bytes and loses nothing that it reads.

use bub_tape::codec;

pub(crate) fn check(bytes: &[u8]) {
    let Some(entry) = codec::decode(bytes) else {
        return;
    };
    let line = codec::encode(&entry);
    assert!(
        line.ends_with('\n') && !line.trim_end_matches('\n').contains('\n'),
        "one line"
    );
    assert_eq!(
        codec::decode(line.as_bytes()).as_ref(),
        Some(&entry),
        "read again unchanged"
    );
    assert_eq!(codec::encode(&entry), line);
}
