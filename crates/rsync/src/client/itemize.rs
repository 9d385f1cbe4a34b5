//! Changes of files as `rsync --itemize-changes` shows them (rsync(1)), for example `>f.st......`.

use crate::receiver::item;
use crate::source::kind;

/// The text for the changes of a file with this mode. `direction` says where content goes: `>` to this side, `<` to the
/// other side.
pub(crate) fn itemize(flags: u16, mode: u32, direction: char) -> String {
    let has = |flag: u16| flags & flag != 0;
    let what = match (has(item::LOCAL_CHANGE), has(item::NAME_FOLLOWS), has(item::TRANSFER)) {
        (true, true, _) => 'h',
        (true, false, _) => 'c',
        (false, _, true) => direction,
        (false, _, false) => '.',
    };
    let of = match mode & kind::MASK {
        kind::DIRECTORY => 'd',
        kind::SYMLINK => 'L',
        kind::CHAR_DEVICE | kind::BLOCK_DEVICE => 'D',
        kind::FIFO | kind::SOCKET => 'S',
        _ => 'f',
    };
    if has(item::NEW) {
        return format!("{what}{of}+++++++++");
    }
    let letters = [
        (item::CHANGE, 'c'),
        (item::SIZE, 's'),
        (item::TIME, 't'),
        (item::PERMISSIONS, 'p'),
        (item::OWNER, 'o'),
        (item::GROUP, 'g'),
        (item::ATIME, 'u'),
        (item::ACL, 'a'),
        (item::XATTRS, 'x'),
    ];
    let is_plain = what != direction && letters.iter().all(|(flag, _)| !has(*flag));
    let none = if is_plain { ' ' } else { '.' };
    let letters = letters.map(|(flag, letter)| if has(flag) { letter } else { none });
    format!("{what}{of}{}", letters.iter().collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_as_rsync_tells_them() {
        let file = kind::FILE | 0o644;
        for (flags, mode, told) in [
            (item::TRANSFER | item::NEW, file, ">f+++++++++"),
            (item::TRANSFER | item::SIZE | item::TIME, file, ">f.st......"),
            (item::PERMISSIONS | item::GROUP, kind::DIRECTORY, ".d...p.g..."),
            (item::LOCAL_CHANGE | item::NEW, kind::DIRECTORY, "cd+++++++++"),
            (item::LOCAL_CHANGE | item::NAME_FOLLOWS, file, "hf         "),
            (item::LOCAL_CHANGE | item::CHANGE | item::XATTRS, kind::SYMLINK, "cLc.......x"),
        ] {
            assert_eq!(itemize(flags, mode, '>'), told);
        }
    }
}
