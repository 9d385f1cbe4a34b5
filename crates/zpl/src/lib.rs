//! What the bytes of a ZFS filesystem mean: ZAP, SA, directories, attributes, ACLs.
