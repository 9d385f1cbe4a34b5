//! The constants of the protocol, with their names in proto.md without `NBD_` ("Values").

/// "NBDMAGIC": the first bytes of a server.
pub(crate) const INIT_PASSWD: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": the next bytes of a server, and the head of each option.
pub(crate) const OPTS_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(crate) const REP_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub(crate) const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Maximum length of a name or other string, in bytes.
pub(crate) const MAX_STRING: usize = 4096;

// handshake flags; the client's flags have the same bits
pub(crate) const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
pub(crate) const FLAG_NO_ZEROES: u16 = 1 << 1;

pub(crate) mod transmission {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
    pub(crate) const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

pub(crate) mod opt {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
    pub(crate) const EXTENDED_HEADERS: u32 = 11;
}

pub(crate) mod rep {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub(crate) const ERR_POLICY: u32 = (1 << 31) + 2;
    pub(crate) const ERR_INVALID: u32 = (1 << 31) + 3;
    pub(crate) const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub(crate) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub(crate) const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    pub(crate) const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    pub(crate) const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

pub(crate) mod cmd {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;

    pub(crate) const FLAG_FUA: u16 = 1 << 0;
    pub(crate) const FLAG_NO_HOLE: u16 = 1 << 1;
    pub(crate) const FLAG_DF: u16 = 1 << 2;
    pub(crate) const FLAG_REQ_ONE: u16 = 1 << 3;
    pub(crate) const FLAG_FAST_ZERO: u16 = 1 << 4;
    pub(crate) const FLAG_PAYLOAD_LEN: u16 = 1 << 5;
}

pub(crate) mod chunk {
    pub(crate) const FLAG_DONE: u16 = 1 << 0;

    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const BLOCK_STATUS_EXT: u16 = 6;
    pub(crate) const ERROR: u16 = (1 << 15) + 1;
    pub(crate) const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// The only supported metadata context, and its number on every connection.
pub(crate) const BASE_ALLOCATION: &str = "base:allocation";
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;
pub(crate) const STATE_HOLE: u32 = 1 << 0;
pub(crate) const STATE_ZERO: u32 = 1 << 1;
