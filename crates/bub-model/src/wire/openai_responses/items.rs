//! The output items of an answer that is being decoded.

/// An output item of the answer that has been received at least in part.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseItem {
    output_index: Option<u64>,
    id: String,
    /// Position among the tool calls, if the item is a tool call.
    pub(super) call: Option<usize>,
    /// Whether the content was received in deltas, so that the complete item only repeats it.
    pub(super) streamed: bool,
}

/// All items of an answer.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseItems {
    items: Vec<ResponseItem>,
}

impl ResponseItems {
    /// Returns whether no item was received.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Calls `change` with the item that has this index or id. Creates the item if it does not exist.
    pub(super) fn with_item<T>(
        &mut self,
        output_index: Option<u64>,
        id: &str,
        change: impl FnOnce(&mut ResponseItem) -> T,
    ) -> T {
        let is_same_item = |item: &&mut ResponseItem| match (item.output_index, output_index) {
            (Some(item_index), Some(output_index)) => item_index == output_index,
            _ => !id.is_empty() && item.id == id,
        };
        if let Some(item) = self.items.iter_mut().find(is_same_item) {
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
}
