//! The table of properties that `zfs get`, `set` and `inherit` print without arguments. Programs read it to find out
//! which properties can be set.

use snowmelt_dataset::property::{Property, all};

/// The table for this verb; `None` for verbs that print none.
pub fn of(verb: &str) -> Option<String> {
    let is_shown: fn(&Property) -> bool = match verb {
        "get" => |_| true,
        "set" => |property| !property.is_readonly(),
        "inherit" => Property::is_inheritable,
        _ => return None,
    };
    let mut table =
        format!("\nProperties:\n\n\t{:<25}{:>5}  {:>7}   VALUES\n\n", "PROPERTY", "EDIT", "INHERIT");
    let word = |is_so: bool| if is_so { "YES" } else { "NO" };
    for property in all().filter(|property| !property.hidden && is_shown(property)) {
        table.push_str(&format!(
            "\t{:<25}{:>5}  {:>7}   {}\n",
            property.name,
            word(!property.is_readonly()),
            word(property.is_inheritable()),
            property.values,
        ));
    }
    table.push_str("\nSizes are in bytes, or have a unit such as K, M, G or T.\n");
    table.push_str("User properties have a colon (:) in their names.\n");
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_set_is_read_from_the_second_column() {
        let editable = |verb: &str| -> Vec<String> {
            let table = of(verb).unwrap();
            let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            rows.filter(|row| row.get(1) == Some(&"YES")).map(|row| row[0].to_owned()).collect()
        };
        let inherited = editable("inherit");
        assert!(inherited.contains(&"mountpoint".to_owned()) && !inherited.contains(&"quota".to_owned()));
        assert!(editable("set").contains(&"quota".to_owned()));
        assert!(!editable("get").contains(&"used".to_owned()) && of("get").unwrap().contains("\tused "));
        assert_eq!(of("list"), None);
    }
}
