//! One call, from its request to its answer.

use core::time::Duration;

use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use mc_rpc::{GuestCall, Method, Refusal};
use mc_types::ErrorCode;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::body::Body;

use super::connection::{Connection, MASTER_SERVICE};
use super::message::{PREFIX_LEN, Reply, read_message, seal};
use super::metadata::{self, Claim};
use super::status::status;

impl Connection {
    /// Answers a call of `MasterService`.
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Status> {
        let arrived = Instant::now();
        let call = self.admit(&request, arrived).map_err(|refusal| status(&refusal))?;
        let mut body = request.into_body();
        let config = self.calls.config();

        let mut held = self.memory_budget.nothing();
        let stalled_at = arrived + config.stall_timeout;
        let read = read_message(&mut body, config.max_payload, &mut held);
        let payload =
            match timeout_at(call.deadline.map_or(stalled_at, |at| at.min(stalled_at)), read).await
            {
                Ok(payload) => payload?,
                Err(_) if call.is_late() => return Err(status(&self.calls.too_late())),
                Err(_) => return Err(status(&slow_request(call.method(), config.stall_timeout))),
            };
        let answered = self.calls.answer(call, PREFIX_LEN, payload, held).await;
        let (mut bytes, held) = answered.map_err(|refusal| status(&refusal))?;
        seal(&mut bytes);
        let mut response = Response::new(Body::new(Reply::new(held.answer(bytes))));
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(header::CONTENT_TYPE, grpc);
        Ok(response)
    }

    /// Everything about a call but its message.
    fn admit(&self, request: &Request<Incoming>, arrived: Instant) -> Result<GuestCall, Refusal> {
        let name = request.uri().path().strip_prefix(MASTER_SERVICE).unwrap_or_default();
        let method = Method::from_name(name).ok_or_else(|| {
            let message =
                format!("this master has no method {name:?}; it may be older than the client");
            Refusal::new(ErrorCode::NotSupported, message)
        })?;
        let headers = request.headers();
        let Claim { token, tenant } = Claim::read(headers)?;
        let mut call = self.calls.admit(method, token, tenant)?;
        call.deadline = metadata::deadline(headers, arrived)?;
        // One that says nothing of ours is no reason to refuse the call.
        let traced = headers.get("traceparent").and_then(|text| text.to_str().ok());
        call.trace = traced.and_then(|text| text.parse().ok());
        call.max_reply = metadata::max_reply(headers, self.calls.config().max_payload)?;
        Ok(call)
    }
}

fn slow_request(method: Method, stall: Duration) -> Refusal {
    let message = format!("the request of {method} has not arrived completely within {stall:?}");
    Refusal::new(ErrorCode::RpcTimeout, message)
}
