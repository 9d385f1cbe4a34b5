//! A server for the part of S3 that the store needs, and of the similar XML interface of Google's storage.
//!
//! It is atomic, works in memory and fails on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Number of keys in a page of a listing.
const PAGE: usize = 1000;

/// What a server says that is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The bytes of an object have no end.
    EndlessObjects,
    /// An object has as many bytes as no memory has.
    HugeObjects,
    /// Ranges are longer than what was asked for.
    LongerRanges,
    /// Ranges are shorter.
    ShorterRanges,
    /// A page of a listing has no end.
    EndlessPage,
    /// A page has as many bytes as no memory has.
    HugePages,
    /// There is always another page, with nothing in it.
    EmptyPages,
    /// Objects have any size, and a name that fits it.
    HugeParts,
    /// The segments have parts of every length, without end.
    ManyParts,
    /// There is a publication of the highest number.
    LastPublication,
}

pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// `bucket/key`.
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Method and target of each request.
    log: Mutex<Vec<String>>,
    /// One in this many requests fails. 0 means none.
    one_in: AtomicU64,
    seed: AtomicU64,
    /// If it is not 0, all requests are answered with this status.
    refusing: AtomicU64,
    lie: Mutex<Option<Lie>>,
    /// Pages that were made up.
    pages: AtomicU64,
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Request {
    fn is_create_only(&self) -> bool {
        let google = self.headers.get("x-goog-if-generation-match");
        self.headers.contains_key("if-none-match") || google.is_some_and(|generation| generation == "0")
    }
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::<Shared>::default());
        let serving = shared.clone();
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = serving.clone();
                std::thread::spawn(move || shared.serve(&stream));
            }
        });
        Self { address, shared }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets one in `one_in` requests fail: it is lost before or after it took effect, or refused for a while.
    pub fn set_faults(&self, one_in: u64) {
        self.shared.one_in.store(one_in, Ordering::Relaxed);
    }

    /// Answers every request with this status. 0 ends that.
    pub fn refuse(&self, status: u16) {
        self.shared.refusing.store(status.into(), Ordering::Relaxed);
    }

    /// Lies from now on.
    pub fn lie(&self, lie: Option<Lie>) {
        *self.shared.lie.lock().unwrap() = lie;
    }

    /// The requests since the last call of this function.
    pub fn take_log(&self) -> Log {
        Log(std::mem::take(&mut *self.shared.log.lock().unwrap()))
    }

    /// All objects, by their keys.
    pub fn objects(&self) -> Vec<(String, Vec<u8>)> {
        let objects = self.shared.objects.lock().unwrap();
        objects.iter().map(|(key, bytes)| (key.clone(), bytes.clone())).collect()
    }

    pub fn keys(&self) -> Vec<String> {
        self.shared.objects.lock().unwrap().keys().cloned().collect()
    }
}

/// Requests.
#[derive(Debug)]
pub struct Log(Vec<String>);

impl Log {
    /// Number of requests with this method.
    pub fn count(&self, method: &str) -> usize {
        self.0.iter().filter(|line| line.split(' ').next() == Some(method)).count()
    }
}

impl Shared {
    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader) {
            self.log.lock().unwrap().push(format!("{} {}", request.method, request.path));
            let seed = self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20;
            let one_in = self.one_in.load(Ordering::Relaxed);
            let lie = *self.lie.lock().unwrap();
            if let Some(lie) = lie.filter(|_| request.method == "GET")
                && self.tell(stream, &request, lie).is_none_or(|told| told.is_err())
            {
                return;
            }
            if lie.is_some() && request.method == "GET" {
                continue;
            }
            let fault = (one_in > 0 && mixed.is_multiple_of(one_in)).then(|| mixed / one_in % 3);
            let answer = match (fault, self.refusing.load(Ordering::Relaxed)) {
                (Some(0), _) => return,
                (Some(1), _) => error(503, "SlowDown"),
                (_, 0) => self.answer(&request),
                (_, 403) => error(403, "AccessDenied"),
                (_, status) => error(status as u16, "Refused"),
            };
            // The request took effect, but its answer is lost.
            if fault == Some(2) || write_answer(stream, &answer).is_err() {
                return;
            }
        }
    }

    /// Answers with a lie; `None` if nothing more can be said on this connection.
    fn tell(&self, mut stream: &TcpStream, request: &Request, lie: Lie) -> Option<std::io::Result<()>> {
        let is_listing = request.query.contains_key("list-type");
        let is_range = request.headers.contains_key("range");
        let mut answer = self.answer(request);
        let page = self.pages.fetch_add(1, Ordering::Relaxed);
        let bucket = request.path.trim_matches('/');
        let prefix = request.query.get("prefix").map_or("", String::as_str);
        let entry = |key: &str, size: u64| {
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-11-21T12:00:00.000Z</LastModified>\
                 <ETag>\"1\"</ETag><Size>{size}</Size></Contents>"
            )
        };
        let part = |id: u64, offset: u64, len: u64| {
            entry(&format!("tank/segments/{id:016x}/{offset:010x}-{len:010x}-{:016x}", u64::MAX >> 1), len)
        };
        let endless = |mut stream: &TcpStream, head: &str, piece: &[u8]| -> std::io::Result<()> {
            stream.write_all(format!("HTTP/1.1 200 x\r\nETag: \"1\"\r\n{head}\r\n").as_bytes())?;
            loop {
                stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
                stream.write_all(piece)?;
                stream.write_all(b"\r\n")?;
            }
        };
        let said = |more: bool, entries: &str| {
            let next = if more {
                format!("<NextContinuationToken>{page}</NextContinuationToken>")
            } else {
                String::new()
            };
            let body = format!(
                "<?xml version=\"1.0\"?><ListBucketResult>{entries}{next}<IsTruncated>{more}</IsTruncated>\
                 </ListBucketResult>"
            );
            done(200, body.into_bytes())
        };
        assert!(!bucket.is_empty(), "a request of no bucket");
        match lie {
            Lie::EndlessObjects if !is_listing => {
                let modified =
                    "Last-Modified: Sat, 21 Nov 2026 12:00:00 GMT\r\nTransfer-Encoding: chunked\r\n";
                let _ = endless(stream, modified, &[0; 1 << 16]);
                return None;
            }
            Lie::EndlessPage if is_listing => {
                let piece = entry(&format!("{prefix}/x"), 1).repeat(1000);
                let _ = endless(stream, "Transfer-Encoding: chunked\r\n", piece.as_bytes());
                return None;
            }
            Lie::HugeObjects | Lie::HugePages if is_listing == (lie == Lie::HugePages) => {
                let head = "HTTP/1.1 200 x\r\nETag: \"1\"\r\nLast-Modified: Sat, 21 Nov 2026 12:00:00 GMT\r\n\
                            Content-Length: 4611686018427387904\r\n\r\n";
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(&[0; 1 << 16]);
                let _ = stream.write_all(&[0; 1 << 16]);
                return None;
            }
            Lie::LongerRanges if is_range => answer.body.extend_from_slice(&[7; 100]),
            Lie::ShorterRanges if is_range => drop(answer.body.pop()),
            Lie::EmptyPages if is_listing => answer = said(true, ""),
            Lie::HugeParts if is_listing && prefix.ends_with("segments/") => {
                let sizes = [u64::MAX, u64::MAX - 7, 1 << 63, 1 << 62];
                let parts: Vec<String> = (1..20).map(|id| part(id, 0, sizes[id as usize % 4])).collect();
                answer = said(false, &parts.concat());
            }
            Lie::ManyParts if is_listing && prefix.contains("segments/") => {
                let number = page % 300;
                let parts = (0..1000).map(|n| part(1, number * 1000 + n, 1));
                answer = said(number < 299, &parts.collect::<Vec<_>>().concat());
            }
            Lie::LastPublication if is_listing && prefix.ends_with("uberblocks/") => {
                answer = said(false, &entry("tank/uberblocks/ffffffffffffffff", 1));
            }
            Lie::LastPublication if request.path.ends_with("ffffffffffffffff") => {
                let objects = self.objects.lock().unwrap();
                let newest = objects.iter().rfind(|(key, _)| key.contains("/uberblocks/")).unwrap();
                answer = done(200, newest.1.clone());
            }
            _ => {}
        }
        Some(write_answer(stream, &answer))
    }

    fn answer(&self, request: &Request) -> Answer {
        let path = request.path.trim_start_matches('/');
        if path.starts_with("missing") {
            return error(404, "NoSuchBucket");
        }
        let mut objects = self.objects.lock().unwrap();
        match request.method.as_str() {
            "GET" if request.query.contains_key("list-type") => list(&objects, path, &request.query),
            "GET" => match objects.get(path) {
                Some(bytes) => get(bytes, request.headers.get("range")),
                None => error(404, "NoSuchKey"),
            },
            "PUT" if request.is_create_only() && objects.contains_key(path) => {
                error(412, "PreconditionFailed")
            }
            "PUT" => {
                objects.insert(path.to_owned(), request.body.clone());
                done(200, Vec::new())
            }
            "DELETE" => {
                objects.remove(path);
                done(204, Vec::new())
            }
            _ => error(501, "NotImplemented"),
        }
    }
}

fn done(status: u16, body: Vec<u8>) -> Answer {
    let headers =
        vec![("ETag", "\"1\"".to_owned()), ("Last-Modified", "Sat, 21 Nov 2026 12:00:00 GMT".to_owned())];
    Answer { status, headers, body }
}

fn error(status: u16, code: &str) -> Answer {
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>by the test</Message></Error>");
    Answer { status, headers: Vec::new(), body: body.into_bytes() }
}

fn get(bytes: &[u8], range: Option<&String>) -> Answer {
    let Some(range) = range else { return done(200, bytes.to_vec()) };
    let (start, last) = range.trim_start_matches("bytes=").split_once('-').unwrap();
    let (start, last): (usize, usize) = (start.parse().unwrap(), last.parse().unwrap());
    let Some(part) = bytes.get(start..(last + 1).min(bytes.len())) else { return error(416, "InvalidRange") };
    let mut answer = done(206, part.to_vec());
    let range = format!("bytes {start}-{}/{}", start + part.len() - 1, bytes.len());
    answer.headers.push(("Content-Range", range));
    answer
}

fn list(objects: &BTreeMap<String, Vec<u8>>, bucket: &str, query: &BTreeMap<String, String>) -> Answer {
    let bucket = bucket.trim_end_matches('/');
    let prefix = format!("{bucket}/{}", query.get("prefix").map_or("", String::as_str));
    let after = query.get("continuation-token").map_or("", String::as_str);
    let mut found = objects.iter().filter(|(key, _)| key.starts_with(&prefix) && key.as_str() > after);
    let mut body = "<?xml version=\"1.0\"?><ListBucketResult>".to_owned();
    let mut last = "";
    for (key, bytes) in found.by_ref().take(PAGE) {
        let name = key.strip_prefix(bucket).unwrap().trim_start_matches('/');
        body.push_str(&format!(
            "<Contents><Key>{name}</Key><LastModified>2026-11-21T12:00:00.000Z</LastModified><ETag>\"1\"</ETag>\
             <Size>{}</Size></Contents>",
            bytes.len()
        ));
        last = key;
    }
    let more = found.next().is_some();
    if more {
        body.push_str(&format!("<NextContinuationToken>{last}</NextContinuationToken>"));
    }
    body.push_str(&format!("<IsTruncated>{more}</IsTruncated></ListBucketResult>"));
    done(200, body.into_bytes())
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&len| len > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (unescape(path), query.to_owned());
    let query = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = query.map(|(name, value)| (name.to_owned(), unescape(value))).collect();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len = headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, query, headers, body })
}

/// Decodes percent encoding.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = (byte == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        rest = if code.is_some() { &after[2..] } else { after };
        out.push(code.unwrap_or(byte));
    }
    String::from_utf8(out).unwrap()
}

fn write_answer(mut stream: &TcpStream, answer: &Answer) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} x\r\nContent-Length: {}\r\n", answer.status, answer.body.len());
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(&answer.body)
}
