//! A client without a connection, for tests of what its calls send and read.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};
use prost::Message;

use super::Still;
use crate::answer::Answer;
use crate::client::outcome;
use crate::frame::Kind;
use crate::service::{Call, MasterService, Service};
use crate::{Caller, Method, Refusal, RpcError};

/// What answers the calls of a [`Direct`] client.
pub(crate) trait Answers {
    fn answer(&self, method: Method, payload: &[u8]) -> Result<BytesMut, Refusal>;
}

/// Answers every call with this message.
impl<M: Message> Answers for M {
    fn answer(&self, _: Method, _: &[u8]) -> Result<BytesMut, Refusal> {
        Ok(self.encode_to_vec().as_slice().into())
    }
}

/// Answers every call with these bytes.
pub(crate) struct Raw<'a>(pub(crate) &'a [u8]);

impl Answers for Raw<'_> {
    fn answer(&self, _: Method, _: &[u8]) -> Result<BytesMut, Refusal> {
        Ok(self.0.into())
    }
}

impl Answers for MasterService<Still> {
    fn answer(&self, method: Method, payload: &[u8]) -> Result<BytesMut, Refusal> {
        Limited(self, 1 << 20).answer(method, payload)
    }
}

/// A service whose caller accepts so many bytes as an answer.
pub(crate) struct Limited<'a>(pub(crate) &'a MasterService<Still>, pub(crate) usize);

impl Answers for Limited<'_> {
    fn answer(&self, method: Method, payload: &[u8]) -> Result<BytesMut, Refusal> {
        let (mut out, caller) = (BytesMut::new(), &Caller::ANYBODY);
        let call = Call { method, payload, max_reply: self.1, caller, from: None };
        self.0.call(call, &mut out)?;
        Ok(out)
    }
}

/// A client whose calls are answered in this process.
pub(crate) struct Direct<'a>(pub(crate) &'a dyn Answers);

impl Direct<'_> {
    pub(crate) fn call<T>(
        &self,
        method: Method,
        write: impl FnOnce(&mut BytesMut),
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, RpcError> {
        let mut payload = BytesMut::new();
        write(&mut payload);
        let answer = self.0.answer(method, &payload)?;
        outcome(method, &"direct".into(), (Kind::Reply, method.number(), &answer), read)
    }
}

/// The request that a call sends.
pub(crate) fn request_of<T>(call: impl FnOnce(&Direct<'_>) -> T) -> Bytes {
    struct Sent(RefCell<Bytes>);
    impl Answers for Sent {
        fn answer(&self, _: Method, payload: &[u8]) -> Result<BytesMut, Refusal> {
            *self.0.borrow_mut() = Bytes::copy_from_slice(payload);
            Ok(BytesMut::new())
        }
    }
    let sent = Sent(RefCell::default());
    call(&Direct(&sent));
    sent.0.into_inner()
}

/// The request that a call sends, as prost reads it.
pub(crate) fn message_of<M: Message + Default, T>(call: impl FnOnce(&Direct<'_>) -> T) -> M {
    M::decode(request_of(call)).unwrap()
}

/// Returns whether the answer was not what the protocol says.
pub(crate) fn is_malformed<T>(answer: &Result<T, RpcError>) -> bool {
    matches!(answer, Err(RpcError::Malformed { .. }))
}
