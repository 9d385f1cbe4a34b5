//! Addresses of object stores, and the clients for them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, ObjectStore as Backend, RetryConfig};
use url::Url;

use crate::{Result, StoreError};

/// How addresses of object stores begin.
/// Connecting takes longer only where nobody listens.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The account at an emulator, which asks for none.
const NO_ACCOUNT: &str = r#"{"disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}"#;

fn invalid(url: &str, why: impl Into<String>) -> StoreError {
    StoreError::Invalid { path: PathBuf::from(url), why: why.into() }
}

/// The client for the bucket that `url` names, and the key below which the pool is.
pub(crate) fn connect(url: &str) -> Result<(Arc<dyn Backend>, Key)> {
    let parsed = Url::parse(url).map_err(|error| invalid(url, format!("not an address: {error}")))?;
    let bucket = parsed.host_str().filter(|host| !host.is_empty());
    let bucket = bucket.ok_or_else(|| invalid(url, "names no bucket: s3://BUCKET/PREFIX"))?;
    let prefix = parsed.path().trim_matches('/');
    let prefix = Key::from_url_path(prefix).map_err(|error| invalid(url, error.to_string()))?;
    if prefix.parts().next().is_none() {
        return Err(invalid(
            url,
            "names no prefix: give the pool a place of its own, such as s3://BUCKET/tank",
        ));
    }
    crypto();
    // Attempts are limited and repeated above the client: `remote.rs` says why.
    let retry = RetryConfig { max_retries: 0, backoff: BackoffConfig::default(), ..RetryConfig::default() };
    let client = ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT_MAX);
    let refused = |error: object_store::Error| invalid(url, error.to_string());
    let backend: Arc<dyn Backend> = match parsed.scheme() {
        "s3" => {
            // Not every store knows deletions in bulk.
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
            let mut builder = builder.with_disable_bulk_delete(true);
            let mut client = client;
            if let Some(endpoint) = endpoint() {
                // Whoever writes http:// means it.
                client = client.with_allow_http(endpoint.starts_with("http://"));
                builder = builder.with_endpoint(endpoint);
            }
            Arc::new(builder.with_client_options(client).build().map_err(refused)?)
        }
        "gs" => {
            let mut builder =
                GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry);
            let mut client = client;
            if let Some(emulator) = google_emulator() {
                client = client.with_allow_http(emulator.starts_with("http://"));
                builder = builder.with_base_url(&emulator).with_service_account_key(NO_ACCOUNT);
            }
            Arc::new(builder.with_client_options(client).build().map_err(refused)?)
        }
        "az" | "azure" | "abfs" | "abfss" => Arc::new(
            MicrosoftAzureBuilder::from_env()
                .with_container_name(bucket)
                .with_retry(retry)
                .with_client_options(client)
                .build()
                .map_err(refused)?,
        ),
        other => return Err(invalid(url, format!("'{other}' is no object store: s3, gs and az are known"))),
    };
    Ok((backend, prefix))
}

/// What tells the pool at `url`, used from here, from all others: the same address means different places at different
/// endpoints, and a process that calls itself another machine is none of this one's.
pub(crate) fn identity(url: &Path) -> PathBuf {
    let endpoint = match service(url) {
        "s3" => endpoint(),
        "gs" => google_emulator(),
        _ => None,
    };
    let words = [endpoint, machine()].into_iter().flatten().chain([url.display().to_string()]);
    words.collect::<Vec<_>>().join(" ").into()
}

/// The name that the environment gives this machine.
pub(super) fn machine() -> Option<String> {
    std::env::var("SNOWMELT_MACHINE").ok().filter(|name| !name.is_empty())
}

/// The scheme of an address, which says what service it is.
pub(super) fn service(url: &Path) -> &str {
    url.to_str().and_then(|url| url.split_once(":/")).map_or("", |(scheme, _)| scheme)
}

/// Where an emulator of Google's storage listens, by the variable that Google's own clients have for it.
fn google_emulator() -> Option<String> {
    let place = std::env::var("STORAGE_EMULATOR_HOST").ok().filter(|place| !place.is_empty())?;
    Some(if place.contains("://") { place } else { format!("http://{place}") })
}

fn endpoint() -> Option<String> {
    std::env::var("AWS_ENDPOINT_URL_S3").or_else(|_| std::env::var("AWS_ENDPOINT_URL")).ok()
}

/// Chooses the implementation of TLS, once: the client takes whatever the process has.
fn crypto() {
    static CHOSEN: OnceLock<()> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        // An error says that somebody has chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_url;

    #[test]
    fn addresses_are_told_from_paths() {
        for url in ["s3://b/p", "gs://b/p", "az://c/p"] {
            assert!(is_url(url), "{url}");
        }
        for path in ["/s3/b", "s3:/b", "tank", "host:/srv", "http://x/y", "nbd://x", "file:///x"] {
            assert!(!is_url(path), "{path}");
        }
    }

    #[test]
    fn addresses_that_cannot_be_are_refused_in_words() {
        let refuse = |url| connect(url).map(drop).unwrap_err().to_string();
        assert!(refuse("s3://bucket").contains("names no prefix"));
        assert!(refuse("s3:///prefix").contains("names no bucket"));
        assert!(refuse("ftp://bucket/prefix").contains("no object store"));
    }
}
