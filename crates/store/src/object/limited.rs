//! Limits the length of answers: the client keeps some answers in memory as a whole, and the server chooses their
//! length.

use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};

use super::remote::TOO_MUCH;

/// Longer than any answer: a run of windows has 4 MiB, a page of a listing some thousand names of at most 1 KiB.
const ANSWER_MAX: usize = 32 << 20;

/// Makes clients that refuse answers longer than [`ANSWER_MAX`].
#[derive(Debug)]
pub(super) struct LimitedConnector;

impl HttpConnector for LimitedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(LimitedService(client)))
    }
}

#[derive(Debug)]
struct LimitedService(HttpClient);

fn too_long() -> HttpError {
    let what = format!("more than {ANSWER_MAX} bytes in an answer {TOO_MUCH}");
    HttpError::new(HttpErrorKind::Unknown, std::io::Error::other(what))
}

#[async_trait]
impl HttpService for LimitedService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = self.0.execute(request).await?.into_parts();
        let said = head.headers.get("content-length").and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
        if said.is_some_and(|len| len > ANSWER_MAX as u64) {
            return Err(too_long());
        }
        let limited = Limited::new(body, ANSWER_MAX);
        // The error is one of the connection, or says that the limit was reached.
        let limited = limited.map_err(|error| match error.downcast::<HttpError>() {
            Ok(error) => *error,
            Err(_) => too_long(),
        });
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(limited)))
    }
}
