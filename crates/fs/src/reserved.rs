//! The name of the directory that contains the record of a target.

/// The directory in the target that contains the record.
pub const RECORD_DIRECTORY: &str = ".snowmelt-sync";

/// Whether some filesystem treats a name as that of the record's directory. There, case may not matter (ext4 and f2fs
/// with `casefold`, FAT), invisible characters may be ignored (`casefold`), and so may dots and blanks at the end
/// (FAT). Such names of a snapshot are not restored.
pub fn is_reserved(name: &[u8]) -> bool {
    let is_long_enough = name.len() >= RECORD_DIRECTORY.len();
    let folded = || {
        let name = String::from_utf8_lossy(name);
        let seen = name.trim_end_matches(['.', ' ']).chars().filter(|letter| !is_invisible(*letter));
        seen.flat_map(char::to_uppercase).flat_map(char::to_lowercase).eq(RECORD_DIRECTORY.chars())
    };
    is_long_enough && folded()
}

/// Unicode's property `Default_Ignorable_Code_Point`.
fn is_invisible(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_record_is_reserved_however_it_is_written() {
        for name in [
            ".snowmelt-sync",
            ".Snowmelt-SYNC",
            ".\u{17f}nowmelt-sync",
            ".snow\u{ad}melt-sync",
            ".snowmelt-SYNC\u{fe0f}\u{e0041}",
            "\u{200d}.snowmelt-sync",
            ".snowmelt-sync.",
            ".snowmelt-sync. .",
        ] {
            assert!(is_reserved(name.as_bytes()), "{name}");
        }
        for name in
            ["", ".snowmelt", ".snowmelt-sync2", "snowmelt-sync", ".disk.snowmelt-sync", ".snow melt-sync"]
        {
            assert!(!is_reserved(name.as_bytes()), "{name}");
        }
    }
}
