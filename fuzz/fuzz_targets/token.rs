//! Arbitrary text as a resume token: no panic, and a valid token can be printed and parsed again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snowmelt_stream::{NvList, ResumeToken};

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(token) = ResumeToken::parse(text)
    {
        let again = ResumeToken::parse(&token.to_string()).expect("own token");
        assert_eq!(again.to_string(), token.to_string());
        let _ = token.required();
    }
    // The checksum keeps most inputs out, so the list inside is also tested directly.
    if let Ok(list) = NvList::unpack(data) {
        let token = ResumeToken(list);
        let again = ResumeToken::parse(&token.to_string()).expect("own token");
        assert_eq!(again.to_string(), token.to_string());
    }
});
