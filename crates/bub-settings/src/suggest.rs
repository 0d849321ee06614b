//! Suggestions for mistyped names ("did you mean").

/// Returns the candidate that `name` is most likely a typo of.
///
/// One mistake per three characters is tolerated, at most two: `modle` and `mode` are typos of
/// `model`, but `discord` is a different word.
pub fn closest_match<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = normalize(name);
    // The distance is at least the difference of the lengths, which is much faster to compute.
    let length = name.chars().count();
    let candidates = candidates.filter(|word| word.chars().count().abs_diff(length) <= 2);
    let rated = candidates.map(|candidate| {
        let distance = strsim::damerau_levenshtein(&name, &normalize(candidate));
        (distance, candidate)
    });
    let likely = rated.filter(|(distance, candidate)| *distance <= (candidate.len() / 3).min(2));
    let closest = likely.min_by_key(|(distance, _)| *distance)?;
    Some(closest.1)
}

/// Normalizes case and separators, which do not count as typos.
fn normalize(name: &str) -> String {
    name.to_ascii_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_its_neighbour_and_another_word_finds_nothing() {
        let candidates = ["model", "max_steps", "max_tokens", "api_key"];
        let find = |name| closest_match(name, candidates.into_iter());
        assert_eq!(find("modle"), Some("model"));
        assert_eq!(find("max-steps"), Some("max_steps"));
        assert_eq!(find("apikey"), Some("api_key"));
        assert_eq!(find("discord"), None);
        assert_eq!(find("x"), None);
    }
}
