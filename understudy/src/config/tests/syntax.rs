//! Tests of files that are not TOML.

use super::fails;

#[test]
fn keys_need_values() {
    fails(
        "[runtime]\nmemory_mb 64 #!\n",
        "a key without a value",
        "write it with an equals sign: `memory_mb = ...`; strings are written in quotes",
    );
    fails(
        "[runtime]\nmemory_mb: 64 #!\n",
        "a key and its value are separated by `=`, not by `:`",
        "write `memory_mb = ...`",
    );
    fails("[runtime]\nmemory_mb == 64 #!\n", "more than one equals sign", "write `key = value`");
    fails(
        "[runtime]\nmemory_mb = #!\n",
        "a value is missing",
        "write `key = value`: a number, `true` or `false`, a string in quotes, or a list in brackets",
    );
    fails("[runtime]\nmemory_mb = 64 // enough #!\n", "a comment begins with `#`", "write `64 # enough`");
    fails(
        "[runtime]\nmemory_mb = 64\nmemory_mb = 65 #!\n",
        "`memory_mb` is defined twice",
        "remove one of the two",
    );
    fails(
        "= 5 #!\n",
        "this is not TOML: unquoted keys cannot be empty, expected letters, numbers, `-`, `_`",
        "write `key = value` below a `[table]`, strings in quotes and lists in brackets",
    );
}

#[test]
fn malformed_numbers_are_reported() {
    fails(
        "[runtime]\nmemory_mb = 1,000 #!\n",
        "unexpected text at the end of this line",
        "write one `key = value` on a line, strings in quotes, and numbers without commas or units",
    );
    fails(
        "[runtime]\nmemory_mb = 064 #!\n",
        "a number must not begin with a zero",
        "leave it out; an octal number is written `0o17`",
    );
    fails(
        "[runtime]\nmemory_mb = 64MB #!\n",
        "`64MB` is not a number",
        "write the number alone: `64`; the unit is in the name of the key",
    );
    fails("[runtime]\nmemory_mb = 6.4.0 #!\n", "`6.4.0` has to be in quotes", r#"write `"6.4.0"`"#);
}

#[test]
fn malformed_booleans_are_reported() {
    fails(
        "[runtime]\nhugepages = yes #!\n",
        "`yes` is neither `true` nor `false`",
        r#"write `true`, or put a string in quotes: `"yes"`"#,
    );
    fails(
        "[runtime]\nhugepages = off #!\n",
        "`off` is neither `true` nor `false`",
        r#"write `false`, or put a string in quotes: `"off"`"#,
    );
    fails(
        "[runtime]\nhugepages = True #!\n",
        "`True` is neither `true` nor `false`",
        "write `true` or `false` in lower case, or a string in quotes",
    );
}

#[test]
fn strings_need_quotes() {
    fails(
        "[runtime]\nfile_prefix = understudy #!\n",
        "`understudy` has to be in quotes",
        r#"write `"understudy"`"#,
    );
    fails("[runtime]\nfile_prefix = fast #!\n", "`fast` has to be in quotes", r#"write `"fast"`"#);
    fails(
        "[runtime]\nfile_prefix = \"understudy #!\n",
        "a string is not closed",
        "end it with a quote on the same line",
    );
    fails(
        "[[port]]\npcap = { rx = \"\\data\" } #!\n",
        "unknown escape sequence after a backslash in a string",
        r"write `\\` for a backslash, or the string in single quotes",
    );
    fails(
        "[[port]]\npci = 0000:3b:00.0 #!\n",
        "`0000:3b:00.0` has to be in quotes",
        r#"write `"0000:3b:00.0"`"#,
    );
    fails("[[port]]\npci = 3b:00.0 #!\n", "`3b:00.0` has to be in quotes", r#"write `"3b:00.0"`"#);
    fails(
        "[forward]\nfixed = [{ mac = 52:54:00:00:00:01 }] #!\n",
        "`52:54:00:00:00:01` has to be in quotes",
        r#"write `"52:54:00:00:00:01"`"#,
    );
}

#[test]
fn headers_and_tables_have_to_be_closed() {
    fails(
        "[runtime #!\nmemory_mb = 64\n",
        "the header of a table is not closed",
        "write a name in brackets, such as `[runtime]`, and [[port]] in double ones",
    );
    fails(
        "[run time] #!\nmemory_mb = 64\n",
        "the header of a table is not closed",
        "write a name in brackets, such as `[runtime]`, and [[port]] in double ones",
    );
    fails(
        "[runtime]\n[forward]\n[runtime] #!\n",
        "`runtime` is defined twice",
        "merge the two tables; only tables in double brackets, such as [[port]], may be repeated",
    );
    fails("[forward]\nmac_table = { capacity = 3 #!\n", "a table in braces is not closed", "end it with `}`");
}

#[test]
fn lists_need_commas_and_brackets() {
    fails(
        "[forward]\npairs = [[\"a\" \"b\"]] #!\n",
        "a comma is missing between two elements, or the bracket after the last",
        "put commas between the elements, and `]` after the last",
    );
    fails(
        "[forward]\npairs = [[\"a\", \"b\"]\ndrop = \"all\" #!\n",
        "a comma is missing between two elements, or the bracket after the last",
        "put commas between the elements, and `]` after the last",
    );
    fails("[forward]\npairs = [[\"a\", \"b\"] #!", "a list is not closed", "end it with `]`");
}
