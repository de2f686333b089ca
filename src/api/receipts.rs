//! Receipts of refused writes. There are none before there is a data plane to refuse any.

use axum::Json;

use super::wire::ReceiptList;

/// The latest refused writes, newest first.
#[utoipa::path(get, operation_id = "listReceipts", path = "/v1/receipts", tag = "receipts", responses((status = 200, body = ReceiptList)))]
pub async fn list() -> Json<ReceiptList> {
    Json(ReceiptList { receipts: vec![] })
}
