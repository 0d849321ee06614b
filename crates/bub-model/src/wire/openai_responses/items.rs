//! The output items of one answer, as far as events have told of them.

/// What is known of one item.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseItem {
    output_index: Option<u64>,
    id: String,
    /// Position among the tool calls, if it is one.
    pub(super) call: Option<usize>,
    /// Whether its content came in deltas, so that the whole of it is a repetition.
    pub(super) streamed: bool,
}

/// All items of one answer.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseItems {
    items: Vec<ResponseItem>,
    calls: usize,
}

impl ResponseItems {
    /// Whether no event was about an item yet.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Lets `change` see the item an event is about, found by index or id, or made now.
    pub(super) fn with<T>(
        &mut self,
        output_index: Option<u64>,
        id: &str,
        change: impl FnOnce(&mut ResponseItem) -> T,
    ) -> T {
        let same = |item: &&mut ResponseItem| match (item.output_index, output_index) {
            (Some(one), Some(other)) => one == other,
            _ => !id.is_empty() && item.id == id,
        };
        if let Some(item) = self.items.iter_mut().find(same) {
            return change(item);
        }
        let mut item = ResponseItem {
            output_index,
            id: id.to_owned(),
            ..ResponseItem::default()
        };
        let result = change(&mut item);
        self.items.push(item);
        result
    }

    /// The position of the next tool call.
    pub(super) fn next_call(&mut self) -> usize {
        self.calls += 1;
        self.calls - 1
    }
}
