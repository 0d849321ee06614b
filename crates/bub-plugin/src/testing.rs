//! The reader of the protocol for fuzzing. The feature `testing` enables this module.

use std::sync::{Arc, mpsc};

use bub_kernel::Error;
use serde_json::Value;

use crate::peer::{Peer, Question, RequestHandler, read_lines};

/// Reads arbitrary bytes as the output of a plugin, for fuzzing. Returns why the connection was closed.
///
/// The simulated host has three unanswered requests and rejects all requests of the plugin.
pub fn read_for_fuzzing(bytes: &[u8]) -> String {
    struct RejectingHandler;
    impl RequestHandler for RejectingHandler {
        fn handle_request(&self, peer: &Arc<Peer>, question: Question) {
            peer.respond(&question.id, Err(Error::not_found(question.method)));
        }
        fn handle_notification(&self, _method: &str, _params: &Value) {}
        fn handle_close(&self, _peer: &Peer, _cause: &str) {}
    }
    let (outgoing, _lines) = mpsc::channel();
    let peer = Arc::new(Peer::new(outgoing, "fuzz"));
    let _requests: Vec<_> = (0..3)
        .map(|credits| peer.send_request("hook", &Value::Null, credits))
        .collect();
    let cause = read_lines(bytes, &peer, &RejectingHandler);
    peer.close(&cause);
    cause
}
