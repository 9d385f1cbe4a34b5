//! Error messages for requests that an object store refused: what failed, where, and what the user can do about it.

use std::path::Path;

use object_store::Error;

use super::backend::service;
use super::remote::status;
use crate::{RemoteError, StoreError};

/// The text for a missing object.
pub(super) const NOT_THERE: &str = "it is not there";

/// Advice for each service.
struct Advice {
    credentials: &'static str,
    bucket: &'static str,
    network: &'static str,
}

const S3: Advice = Advice {
    credentials: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    bucket: "make the bucket, or correct its name and AWS_ENDPOINT_URL",
    network: "see whether AWS_ENDPOINT_URL and AWS_REGION are right, and the network is up",
};
const GOOGLE: Advice = Advice {
    credentials: "set GOOGLE_APPLICATION_CREDENTIALS to a file with them",
    bucket: "make the bucket, or correct its name",
    network: "see whether the network is up, and STORAGE_EMULATOR_HOST, if it is set, is right",
};
const AZURE: Advice = Advice {
    credentials: "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    bucket: "make the container, or correct its name and AZURE_STORAGE_ACCOUNT_NAME",
    network: "see whether AZURE_STORAGE_ACCOUNT_NAME is right, and the network is up",
};

impl Advice {
    fn of(url: &Path) -> &'static Self {
        match service(url) {
            "s3" => &S3,
            "gs" => &GOOGLE,
            _ => &AZURE,
        }
    }
}

/// Converts an error of doing `op` to the pool at `url`.
pub(super) fn explain(op: &'static str, url: &Path, error: &Error) -> StoreError {
    let text = whole(error);
    let (why, remedy) = words(error, &text, Advice::of(url));
    StoreError::Remote(Box::new(RemoteError { op, path: url.to_owned(), why, remedy, said: brief(&text) }))
}

fn words(error: &Error, text: &str, advice: &Advice) -> (&'static str, &'static str) {
    let says = |what: &str| text.contains(what);
    if says("RequestTimeTooSkewed") || says("RequestExpired") {
        return ("the clock of this machine is not that of the store", "set the clock (timedatectl, chrony)");
    }
    if says("InvalidAccessKeyId") || says("SignatureDoesNotMatch") || says("ExpiredToken") {
        return ("the credentials are not valid there", advice.credentials);
    }
    if says("NoSuchBucket") || says("BucketNotFound") || says("ContainerNotFound") {
        return ("there is no such bucket", advice.bucket);
    }
    if says("169.254.169.254") || says("metadata.google.internal") {
        return ("there are no credentials", advice.credentials);
    }
    if says("SlowDown") || status(error) == Some(503) || status(error) == Some(429) {
        return (
            "it asks to be left alone for a while",
            "try again later, or raise the limits of the account",
        );
    }
    match (error, status(error)) {
        (Error::PermissionDenied { .. }, _) | (_, Some(403)) => (
            "access is denied (403)",
            "allow these credentials to read, write, list and delete below the prefix",
        ),
        (Error::Unauthenticated { .. }, _) | (_, Some(401)) => {
            ("the credentials are not valid there", advice.credentials)
        }
        (Error::NotFound { .. }, _) => (NOT_THERE, "see whether somebody deletes objects below the prefix"),
        (_, Some(500..)) => ("the store fails", "try again later, and see its own log"),
        (_, Some(_)) => ("the store refuses the request", "see what it said"),
        (Error::Generic { .. }, None) => ("there is no answer", advice.network),
        _ => ("the store cannot do that", "see what it said"),
    }
}

/// Shortens an error in XML.
fn brief(text: &str) -> String {
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
    };
    match (text.split_once("<?xml"), element("Code")) {
        (Some((before, _)), Some(code)) => {
            format!("{}{code}: {}", before, element("Message").unwrap_or_default())
        }
        _ => text.to_owned(),
    }
}

/// The text of an error with its causes, unless they repeat it.
fn whole(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_is_made_short() {
        let text =
            "status code: 404: <?xml v?><Error><Code>NoSuchKey</Code><Message>gone</Message><X>y</X></Error>";
        assert_eq!(brief(text), "status code: 404: NoSuchKey: gone");
        assert_eq!(brief("no xml"), "no xml");
    }

    fn said_of(url: &str, source: &str) -> String {
        let error = Error::Generic { store: "S3", source: source.into() };
        explain("list", Path::new(url), &error).to_string()
    }

    fn said(source: &str) -> String {
        said_of("s3://b/p", source)
    }

    #[test]
    fn the_remedy_is_that_of_the_service() {
        for (source, s3, google, azure) in [
            ("ExpiredToken", "AWS_SECRET", "GOOGLE_APPLICATION", "AZURE_STORAGE_ACCOUNT_KEY"),
            ("connection refused", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "AZURE_STORAGE_ACCOUNT_NAME"),
            ("NoSuchBucket", "AWS_ENDPOINT_URL", "correct its name", "the container"),
        ] {
            for (url, expected) in [("s3://b/p", s3), ("gs://b/p", google), ("az://b/p", azure)] {
                let text = said_of(url, source);
                assert!(text.contains(expected), "{url}: {source}: {text}");
                assert!(url.starts_with("s3") || !text.contains("AWS"), "{url}: {source}: {text}");
            }
        }
    }

    #[test]
    fn the_remedy_follows_the_cause() {
        for (source, expected) in [
            ("status code: 403: <Code>RequestTimeTooSkewed</Code>", "set the clock"),
            ("status code: 403: <Code>InvalidAccessKeyId</Code>", "AWS_ACCESS_KEY_ID"),
            ("status code: 404: <Code>NoSuchBucket</Code>", "make the bucket"),
            ("http://169.254.169.254/latest: connect timeout", "no credentials"),
            ("status code: 503: SlowDown", "left alone"),
            ("status code: 403: no", "allow these credentials"),
            ("status code: 500: oops", "the store fails"),
            ("tcp connect error: Connection refused", "AWS_ENDPOINT_URL"),
        ] {
            let text = said(source);
            assert!(text.contains(expected), "{source}: {text}");
            assert!(text.contains("cannot list s3://b/p") && text.contains(source), "{text}");
        }
    }
}
