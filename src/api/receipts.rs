//! Receipts of refused writes.

use axum::{Json, extract::State};

use super::caller::Caller;
use crate::{
    gate::Shared,
    wire::{ReceiptBody, ReceiptList},
};

/// The latest refused writes, newest first.
#[utoipa::path(get, operation_id = "listReceipts", path = "/v1/receipts", tag = "receipts", responses(
    (status = 200, body = ReceiptList)))]
pub async fn list(State(gate): State<Shared>, caller: Caller) -> Json<ReceiptList> {
    let visible = caller.view();
    let all = gate.receipts.list().into_iter();
    let seen = all.filter(|(_, receipt)| match &receipt.object {
        Some(object) => visible.covers(object.as_str()),
        // A write of no object: it may have been meant for any.
        None => visible.is_all(),
    });
    Json(ReceiptList { receipts: seen.map(|(id, receipt)| ReceiptBody::new(id, &receipt)).collect() })
}
