//! What is not TOML.

use super::wrong;

#[test]
fn keys_and_values() {
    wrong(
        "[runtime]\nmemory_mb 64 #!\n",
        "a key without a value",
        "write it with an equals sign: `memory_mb = ...`; strings are written in quotes",
    );
    wrong(
        "[runtime]\nmemory_mb: 64 #!\n",
        "a key and its value are separated by `=`, not by `:`",
        "write `memory_mb = ...`",
    );
    wrong("[runtime]\nmemory_mb == 64 #!\n", "more than one equals sign", "write `key = value`");
    wrong(
        "[runtime]\nmemory_mb = #!\n",
        "a value is missing",
        "write `key = value`: a number, `true` or `false`, a string in quotes, or a list in brackets",
    );
    wrong("[runtime]\nmemory_mb = 64 // enough #!\n", "a comment begins with `#`", "write `64 # enough`");
    wrong(
        "[runtime]\nmemory_mb = 64\nmemory_mb = 65 #!\n",
        "`memory_mb` is defined twice",
        "remove one of the two",
    );
    wrong(
        "= 5 #!\n",
        "this is not TOML: unquoted keys cannot be empty, expected letters, numbers, `-`, `_`",
        "write `key = value` below a `[table]`, strings in quotes and lists in brackets",
    );
}

#[test]
fn numbers() {
    wrong(
        "[runtime]\nmemory_mb = 1,000 #!\n",
        "unexpected text at the end of this line",
        "write one `key = value` on a line, strings in quotes, and numbers without commas or units",
    );
    wrong(
        "[runtime]\nmemory_mb = 064 #!\n",
        "a number must not begin with a zero",
        "leave it out; an octal number is written `0o17`",
    );
    wrong(
        "[runtime]\nmemory_mb = 64MB #!\n",
        "`64MB` is not a number",
        "write the number alone: `64`; the unit is in the name of the key",
    );
    wrong("[runtime]\nmemory_mb = 6.4.0 #!\n", "`6.4.0` has to be in quotes", r#"write `"6.4.0"`"#);
}

#[test]
fn booleans() {
    wrong(
        "[runtime]\nhugepages = yes #!\n",
        "`yes` is neither `true` nor `false`",
        r#"write `true`, or put a string in quotes: `"yes"`"#,
    );
    wrong(
        "[runtime]\nhugepages = off #!\n",
        "`off` is neither `true` nor `false`",
        r#"write `false`, or put a string in quotes: `"off"`"#,
    );
    wrong(
        "[runtime]\nhugepages = True #!\n",
        "`True` is neither `true` nor `false`",
        "write `true` or `false` in lower case, or a string in quotes",
    );
}

#[test]
fn texts() {
    wrong(
        "[runtime]\nfile_prefix = understudy #!\n",
        "`understudy` has to be in quotes",
        r#"write `"understudy"`"#,
    );
    wrong("[runtime]\nfile_prefix = fast #!\n", "`fast` has to be in quotes", r#"write `"fast"`"#);
    wrong(
        "[runtime]\nfile_prefix = \"understudy #!\n",
        "a string is not closed",
        "end it with a quote on the same line",
    );
    wrong(
        "[[port]]\npcap = { rx = \"\\data\" } #!\n",
        "unknown escape sequence after a backslash in a string",
        r"write `\\` for a backslash, or the string in single quotes",
    );
    wrong(
        "[[port]]\npci = 0000:3b:00.0 #!\n",
        "`0000:3b:00.0` has to be in quotes",
        r#"write `"0000:3b:00.0"`"#,
    );
    wrong("[[port]]\npci = 3b:00.0 #!\n", "`3b:00.0` has to be in quotes", r#"write `"3b:00.0"`"#);
    wrong(
        "[forward]\nfixed = [{ mac = 52:54:00:00:00:01 }] #!\n",
        "`52:54:00:00:00:01` has to be in quotes",
        r#"write `"52:54:00:00:00:01"`"#,
    );
}

#[test]
fn tables() {
    wrong(
        "[runtime #!\nmemory_mb = 64\n",
        "the header of a table is not closed",
        "write a name in brackets, such as `[runtime]`, and [[port]] in double ones",
    );
    wrong(
        "[run time] #!\nmemory_mb = 64\n",
        "the header of a table is not closed",
        "write a name in brackets, such as `[runtime]`, and [[port]] in double ones",
    );
    wrong(
        "[runtime]\n[forward]\n[runtime] #!\n",
        "`runtime` is defined twice",
        "merge the two tables; only tables in double brackets, such as [[port]], may be repeated",
    );
    wrong("[forward]\nmac_table = { capacity = 3 #!\n", "a table in braces is not closed", "end it with `}`");
}

#[test]
fn lists() {
    wrong(
        "[forward]\npairs = [[\"a\" \"b\"]] #!\n",
        "a comma is missing between two elements, or the bracket after the last",
        "put commas between the elements, and `]` after the last",
    );
    wrong(
        "[forward]\npairs = [[\"a\", \"b\"]\ndrop = \"all\" #!\n",
        "a comma is missing between two elements, or the bracket after the last",
        "put commas between the elements, and `]` after the last",
    );
    wrong("[forward]\npairs = [[\"a\", \"b\"] #!", "a list is not closed", "end it with `]`");
}
