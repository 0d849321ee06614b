//! A `SKILL.md` of any text is rejected with a reason, or gives a skill within the limits, with any
//! line ends.

use bub_agent::read_skill;

/// The first line is the name of the directory.
pub(crate) fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Some((name, text)) = text.split_once('\n') else {
        return;
    };
    let (description, variables, body) = match read_skill(text, name) {
        Ok(found) => found,
        Err(why) => return assert!(!why.is_empty()),
    };
    assert!(
        name.len() <= 64 && !name.contains(['/', '.']),
        "a name that leads elsewhere: {name:?}"
    );
    assert!(!description.trim().is_empty() && description.chars().count() <= 1024);
    assert!(variables.iter().all(|name| {
        name.bytes()
            .all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
    }));
    if !text.contains('\r') {
        let windows = read_skill(&text.replace('\n', "\r\n"), name);
        assert_eq!(windows, Ok((description, variables, body)));
    }
}
