//! Receipts of refused writes.

use axum::{Json, extract::State};

use crate::{
    gate::Shared,
    wire::{ReceiptBody, ReceiptList},
};

/// The latest refused writes, newest first.
#[utoipa::path(get, operation_id = "listReceipts", path = "/v1/receipts", tag = "receipts", responses(
    (status = 200, body = ReceiptList)))]
pub async fn list(State(gate): State<Shared>) -> Json<ReceiptList> {
    Json(ReceiptList {
        receipts: gate.receipts.list().into_iter().map(|(id, receipt)| ReceiptBody::new(id, &receipt)).collect(),
    })
}
