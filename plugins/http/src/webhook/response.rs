//! Responses about an exchange.

use bub::kernel::RouteResponse;
use http::StatusCode;
use serde_json::{Value, json};

use super::exchange::{ExchangeReply, ExchangeStatus, WaiterGuard};
use crate::response::json_response_with_callback;

/// Builds the response about an exchange. The request counts as waiting until the response is written.
pub(super) fn status_response(
    id: &str,
    exchange_status: &ExchangeStatus,
    waiter: Option<WaiterGuard>,
) -> RouteResponse {
    let status = match exchange_status {
        ExchangeStatus::Pending => StatusCode::ACCEPTED,
        ExchangeStatus::Answered(outbounds) if failure_notice(outbounds).is_some() => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        ExchangeStatus::Answered(_) | ExchangeStatus::Delivered | ExchangeStatus::Dropped(_) => {
            StatusCode::OK
        }
    };
    let (body, exchange_status) = (exchange_json(id, exchange_status), exchange_status.clone());
    json_response_with_callback(status, &body, move || {
        if let Some(waiter) = &waiter {
            waiter.mark_written(&exchange_status);
        }
    })
}

/// Describes an exchange as JSON.
pub(super) fn exchange_json(id: &str, exchange_status: &ExchangeStatus) -> Value {
    let outbounds = match exchange_status {
        ExchangeStatus::Pending => return json!({"id": id, "status": "accepted"}),
        ExchangeStatus::Delivered => return json!({"id": id, "status": "delivered"}),
        ExchangeStatus::Dropped(reason) => {
            return json!({"id": id, "status": "dropped", "reason": reason});
        }
        ExchangeStatus::Answered(outbounds) => outbounds,
    };
    let values: Vec<_> = outbounds.iter().map(ExchangeReply::value).collect();
    if let Some(failure) = failure_notice(outbounds) {
        let error = json!({"code": "turn_failed", "message": failure.content()});
        return json!({"id": id, "status": "failed", "error": error, "outbounds": values});
    }
    let is_answer = |outbound: &&ExchangeReply| !outbound.is_question();
    let reply: Vec<_> = outbounds
        .iter()
        .filter(is_answer)
        .map(ExchangeReply::content)
        .collect();
    json!({"id": id, "status": "answered", "reply": reply.join("\n"), "outbounds": values})
}

/// Returns the failure notice of a turn, which is the last reply and has the kind `error`.
fn failure_notice(outbounds: &[ExchangeReply]) -> Option<&ExchangeReply> {
    outbounds.last().filter(|outbound| outbound.is_error())
}
