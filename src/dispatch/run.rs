//! wip
use super::{Answer, CallRequest, Dispatch};
use crate::tools::ToolError;
pub(super) async fn call(_: &Dispatch, _: CallRequest) -> Answer {
    todo!()
}
pub(super) async fn refuse(_: &Dispatch, _: CallRequest, _: ToolError) -> Answer {
    todo!()
}
