//! Any change to any config file gives the old content with this change, or is rejected and leaves
//! the file unchanged. The input is a path of keys, a value, and the file, separated by line
//! breaks.

use std::path::Path;

use bub_settings::{ConfigFile, parse_yaml};
use serde_json::Value;

fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

pub(crate) fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut parts = text.splitn(3, '\n');
    let (Some(path), Some(value), Some(before)) = (parts.next(), parts.next(), parts.next()) else {
        return;
    };
    let path: Vec<&str> = path.split('.').collect();
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    // The file does not exist, so it starts empty.
    let Ok(mut file) = ConfigFile::open(Path::new("/nonexistent/config.yml")) else {
        return;
    };
    file.set_text(before.to_owned());
    match file.set(&path, &value) {
        Ok(()) => {
            let after = parse_yaml(file.text()).expect("what was written can be read");
            assert_eq!(at(&after, &path), Some(&value), "{}", file.text());
            if file.unset(&path).is_ok() {
                let after = file.parse().expect("what was written can be read").into();
                assert_eq!(at(&after, &path), None, "{}", file.text());
            }
        }
        Err(_) => assert_eq!(file.text(), before, "rejected, but changed"),
    }
}
