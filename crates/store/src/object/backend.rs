//! Connecting to a bucket by the address of a pool in an object store.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, ObjectStore as Backend, RetryConfig};
use url::Url;

use super::limited::LimitedConnector;
use crate::{Result, StoreError};

/// Maximum time for connecting. It is exceeded only if no server listens.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Empty credentials for an emulator, which needs none.
const NO_ACCOUNT: &str = r#"{"disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}"#;

fn invalid(url: &str, why: impl Into<String>) -> StoreError {
    StoreError::Invalid { path: PathBuf::from(url), why: why.into() }
}

/// Returns the client for the bucket in `url`, and the prefix of the pool's keys.
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
    // The client itself does not retry. Timeouts and retries are in `remote.rs`, which gives the reasons.
    let retry = RetryConfig { max_retries: 0, backoff: BackoffConfig::default(), ..RetryConfig::default() };
    let client = ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT_MAX);
    let refused = |error: object_store::Error| invalid(url, error.to_string());
    let backend: Arc<dyn Backend> = match parsed.scheme() {
        "s3" => {
            // Some stores do not support deletions in bulk.
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
            let mut builder = builder.with_disable_bulk_delete(true);
            let mut client = client;
            if let Some(endpoint) = endpoint() {
                // An endpoint with http:// is an explicit choice of the user.
                client = client.with_allow_http(endpoint.starts_with("http://"));
                builder = builder.with_endpoint(endpoint);
            }
            let builder = builder.with_client_options(client).with_http_connector(LimitedConnector);
            Arc::new(builder.build().map_err(refused)?)
        }
        "gs" => {
            let mut builder =
                GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry);
            let mut client = client;
            if let Some(emulator) = google_emulator() {
                client = client.with_allow_http(emulator.starts_with("http://"));
                builder = builder.with_base_url(&emulator).with_service_account_key(NO_ACCOUNT);
            }
            let builder = builder.with_client_options(client).with_http_connector(LimitedConnector);
            Arc::new(builder.build().map_err(refused)?)
        }
        "az" | "azure" | "abfs" | "abfss" => Arc::new(
            MicrosoftAzureBuilder::from_env()
                .with_container_name(bucket)
                .with_retry(retry)
                .with_client_options(client)
                .with_http_connector(LimitedConnector)
                .build()
                .map_err(refused)?,
        ),
        other => return Err(invalid(url, format!("'{other}' is no object store: s3, gs and az are known"))),
    };
    Ok((backend, prefix))
}

/// Identifies the pool at `url` on this machine. It includes the endpoint, because the same address names different
/// pools at different endpoints. It includes the machine's name, because a process with another name counts as on
/// another machine.
pub(crate) fn identity(url: &Path) -> PathBuf {
    let endpoint = match service(url) {
        "s3" => endpoint(),
        "gs" => google_emulator(),
        _ => None,
    };
    let words = [endpoint, machine()].into_iter().flatten().chain([url.display().to_string()]);
    words.collect::<Vec<_>>().join(" ").into()
}

/// The name of this machine in the environment, if there is one.
pub(super) fn machine() -> Option<String> {
    std::env::var("SNOWMELT_MACHINE").ok().filter(|name| !name.is_empty())
}

/// The scheme of an address, which identifies the service.
pub(super) fn service(url: &Path) -> &str {
    url.to_str().and_then(|url| url.split_once(":/")).map_or("", |(scheme, _)| scheme)
}

/// The address of an emulator of Google's storage, from the environment variable that Google's own clients use.
fn google_emulator() -> Option<String> {
    let place = std::env::var("STORAGE_EMULATOR_HOST").ok().filter(|place| !place.is_empty())?;
    Some(if place.contains("://") { place } else { format!("http://{place}") })
}

fn endpoint() -> Option<String> {
    std::env::var("AWS_ENDPOINT_URL_S3").or_else(|_| std::env::var("AWS_ENDPOINT_URL")).ok()
}

/// Installs the TLS implementation for the process, once. The client uses the one that is installed.
fn crypto() {
    static CHOSEN: OnceLock<()> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        // An error means that one is installed already.
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
