//! Tests of merging.

use proptest::prelude::*;

use super::*;

fn origins() -> impl Strategy<Value = SettingSource> {
    prop_oneof![
        Just(SettingSource::Default),
        Just(SettingSource::Env("A".into())),
        Just(SettingSource::Flag("--b".into()))
    ]
}

fn nodes() -> impl Strategy<Value = Node> {
    let leaf = ("[a-c]?", origins()).prop_map(|(text, origin)| NodeData::text(text).at(origin));
    leaf.prop_recursive(3, 24, 4, |inner| {
        let list =
            (prop::collection::vec(inner.clone(), 0..3), origins()).prop_map(|(items, origin)| {
                Node {
                    data: NodeData::List(items),
                    origin,
                }
            });
        let map = (
            prop::collection::btree_map("[x-z]", inner, 0..4),
            any::<bool>(),
            origins(),
        )
            .prop_map(|(entries, replaces_lower, origin)| {
                let map = NodeMap {
                    entries: entries.into_iter().collect(),
                    replaces_lower,
                };
                Node {
                    data: NodeData::Map(map),
                    origin,
                }
            });
        prop_oneof![list, map]
    })
}

/// Returns every leaf with its path.
fn paths(node: &Node) -> Vec<(Vec<String>, Node)> {
    let NodeData::Map(map) = &node.data else {
        return vec![(Vec::new(), node.clone())];
    };
    let below = |(key, value): (&String, &Node)| {
        let key = key.to_owned();
        paths(value).into_iter().map(move |(mut path, leaf)| {
            path.insert(0, key.clone());
            (path, leaf)
        })
    };
    map.entries.iter().flat_map(below).collect()
}

proptest! {
    // H-25
    #[test]
    fn merging_is_associative(a in nodes(), b in nodes(), c in nodes()) {
        let left = merge(merge(a.clone(), b.clone()), c.clone());
        let right = merge(a, merge(b, c));
        prop_assert_eq!(left, right);
    }

    // H-25
    #[test]
    fn every_leaf_of_the_incoming_side_wins(lower in nodes(), upper in nodes()) {
        let merged = merge(lower, upper.clone());
        for (path, leaf) in paths(&upper) {
            prop_assert_eq!(merged.descend(path.iter().map(String::as_str)), Some(&leaf));
        }
    }

    // H-25
    #[test]
    fn merging_a_tree_with_itself_changes_nothing(node in nodes()) {
        let merged = merge(node.clone(), node.clone());
        prop_assert_eq!(merged, node);
    }
}

// H-21
#[test]
fn maps_of_two_sources_merge_and_each_entry_keeps_its_origin() {
    let map = |entries: &[(&str, &str)], origin: &SettingSource| {
        let entries = entries
            .iter()
            .map(|(k, v)| ((*k).to_owned(), NodeData::text(*v).at(origin.clone())))
            .collect();
        Node {
            data: NodeData::Map(NodeMap {
                entries,
                replaces_lower: false,
            }),
            origin: origin.clone(),
        }
    };
    let (low, high) = (SettingSource::Default, SettingSource::Env("X".into()));
    let merged = merge(
        map(&[("a", "1"), ("b", "1")], &low),
        map(&[("b", "2"), ("c", "2")], &high),
    );
    let actual: Vec<_> = paths(&merged)
        .into_iter()
        .map(|(path, leaf)| (path.concat(), leaf.origin))
        .collect();
    assert_eq!(
        actual,
        [
            ("a".into(), low),
            ("b".into(), high.clone()),
            ("c".into(), high)
        ]
    );
}
