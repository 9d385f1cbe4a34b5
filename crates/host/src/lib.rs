//! The application as a library: the places of pools, their owners and keys, and the requests to them.
//!
//! Every front end speaks to pools through this crate. The command line parses words and prints results; it holds no
//! logic of its own that another front end would have to repeat.
//!
//! | module | subject |
//! |---|---|
//! | [`context`] | what a command may touch of the outside: files, directory, environment, words |
//! | [`pools`] | the list of known pools, their keys, the process that owns one, shadows and stream indexes |
//! | `control` | the socket over which the owner of a pool does the commands of other processes |
//! | [`key_source`] | where a pool's key comes from, and the keys that a command has opened |
//! | [`listing`], [`properties`] | rows of `list` and `get`: datasets, values, sources |
//! | [`request`], [`facts`] | what can be asked about a pool, and the answers |
//! | [`report`], [`error`], [`exit`] | errors in the words of `zfs`, and exit statuses |
//! | [`journal`], [`lines`], [`progress`], [`secrets`] | logs, output of other programs, progress lines, reading keys |

pub mod context;
mod control;
pub mod damaged;
pub mod error;
pub mod exit;
pub mod facts;
pub mod journal;
pub mod key_source;
pub mod lines;
pub mod listing;
pub mod pools;
pub mod program;
pub mod progress;
pub mod properties;
pub mod report;
pub mod request;
pub mod secrets;
