//! `%NAME%` in the values of parameters: variables of the environment and of the connection (rsyncd.conf(5), "GLOBAL
//! PARAMETERS").

use std::borrow::Cow;

/// The beginning of the variables of connections. A module that uses one is built again for each connection.
const OF_CONNECTION: &str = "%RSYNC_";
/// The characters that a shell could act on, including a second shell that the command starts (rsyncd.conf(5),
/// "pre-xfer exec").
const SHELL: &str = "'\"`$\\;&|<>()*?[]#!~{}";

/// The value of a variable of the environment, which is known when the file is read.
pub(super) fn of_environment(name: &str) -> Option<String> {
    if name.starts_with("RSYNC_") { None } else { std::env::var(name).ok() }
}

/// Whether a value uses variables of a connection.
pub(super) fn is_of_connection(value: &str) -> bool {
    value.contains(OF_CONNECTION)
}

/// Replaces all references to variables that `look` knows. Other text stays as it is.
///
/// # Errors
/// The errors of `look`.
pub(super) fn expand<'t>(
    text: &'t str,
    mut look: impl FnMut(&str) -> Result<Option<String>, String>,
) -> Result<Cow<'t, str>, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        let name = after.split_once('%').map(|(name, _)| name).filter(|name| is_name(name));
        match name.map(&mut look).transpose()?.flatten() {
            Some(value) => {
                expanded.push_str(before);
                expanded.push_str(&value);
                rest = &after[name.map_or(0, str::len) + 1..];
            }
            None => {
                expanded.push_str(&rest[..=before.len()]);
                rest = after;
            }
        }
    }
    if rest.len() == text.len() {
        return Ok(text.into());
    }
    expanded.push_str(rest);
    Ok(expanded.into())
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Checks that a value that a client may have chosen can be one component of a path, a name or a number.
///
/// # Errors
/// When it cannot.
pub(super) fn is_one_part(name: &str, value: &str) -> Result<(), String> {
    let is_path = matches!(value, "" | "." | "..") || value.contains('/') || value.contains(char::is_control);
    // The path of the module was written by the operator.
    match is_path && name != "RSYNC_MODULE_PATH" {
        true => Err(format!("%{name}% is '{}', which is no name", value.escape_debug())),
        false => Ok(()),
    }
}

/// Checks that a value can stand in a command: a shell acts on nothing in it.
///
/// # Errors
/// In rsync's words.
pub(super) fn is_plain(name: &str, value: &str) -> Result<(), String> {
    match value.contains(|c: char| c.is_whitespace() || c.is_control() || SHELL.contains(c)) {
        true => Err(format!("refusing to run shell hook: %{name}% holds a shell metacharacter")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_replaced() {
        let look = |name: &str| match name {
            "A" => Ok(Some("one".to_owned())),
            "EMPTY" => Ok(Some(String::new())),
            "BAD" => Err("bad".to_owned()),
            _ => Ok(None),
        };
        for (text, expected) in [
            ("plain", "plain"),
            ("%A%", "one"),
            ("/x/%A%/%A%y", "/x/one/oney"),
            ("50% of %A%", "50% of one"),
            ("%%A%%", "%one%"),
            ("%NO%A%", "%NOone"),
            ("%NO% %", "%NO% %"),
            ("%EMPTY%", ""),
            ("a b%A b%", "a b%A b%"),
            ("ä%A%ö", "äoneö"),
        ] {
            assert_eq!(expand(text, look).unwrap(), expected, "{text}");
        }
        assert!(expand("%A%%BAD%", look).is_err());
        assert!(is_of_connection("/home/%RSYNC_USER_NAME%") && !is_of_connection("%HOME%"));
    }

    #[test]
    fn names_are_no_paths_and_no_commands() {
        for bad in ["", ".", "..", "a/b", "/", "a\n"] {
            assert!(is_one_part("RSYNC_USER_NAME", bad).is_err(), "{bad:?}");
        }
        assert!(is_one_part("RSYNC_USER_NAME", "joe@x.org").is_ok());
        assert!(is_one_part("RSYNC_MODULE_PATH", "/srv/a").is_ok());
        for bad in ["a b", "$(x)", "a;b", "~joe", "!", "a\tb", "touc?"] {
            assert!(is_plain("RSYNC_USER_NAME", bad).is_err(), "{bad:?}");
        }
        assert!(
            is_plain("RSYNC_HOST_ADDR", "fe80::1").is_ok()
                && is_plain("RSYNC_USER_NAME", "joe.x-1_@z").is_ok()
        );
    }
}
