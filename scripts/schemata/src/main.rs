//! Puts the mutants of one source file into that file, each behind a number: `schemata FILE [FUNCTION...] <MUTANTS >MUTATED`.
//!
//! `MUTANTS` is the list of `cargo mutants --list --json`, each entry with a `number` from 1 on. The environment variable
//! `MUTANT` chooses one when the program runs; without it, the program does what the original does. So a file is compiled
//! once instead of once for each mutant (Untch, Offutt and Harrold, "Mutation analysis using mutant schemata", 1993).
//!
//! Each change is a match arm, `17u32 => { changed }`, and the original is `__original_17 => { original }`, where 17 is the
//! first of the numbers at that place. `scripts/mutants.py` finds by these which change does not compile, and leaves it out.
//! A `const fn` is no longer `const`, as the choice is made at run time, unless it is one of `FUNCTION...`. Constants, those
//! functions, functions that return `impl Trait` and what has an effect only with planted bugs are left as they are.

use std::collections::HashMap;
use std::io::{Read, Write};

use proc_macro2::{LineColumn, Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::visit_mut::{self, VisitMut};
use syn::{Arm, BinOp, Block, Expr, Signature, parse_quote};

/// A change of the text that begins at a position.
#[derive(Clone)]
struct Change {
    number: u32,
    replacement: String,
}

/// Changes of one genre, by the position where their text begins: line and column, both from 1 on.
type Changes = HashMap<(usize, usize), Vec<Change>>;

struct Mutator {
    /// By cargo-mutants' genre
    genres: HashMap<String, Changes>,
    /// Functions that stay `const`, since a constant calls them
    constant: Vec<String>,
}

impl Mutator {
    fn read(json: &str, constant: Vec<String>) -> Self {
        let list: serde_json::Value = serde_json::from_str(json).expect("a list of mutants in JSON");
        let mut genres: HashMap<String, Changes> = HashMap::new();
        for mutant in list.as_array().expect("a list") {
            let start = &mutant["span"]["start"];
            let at = |key: &str| start[key].as_u64().expect("a position") as usize;
            let change = Change {
                number: mutant["number"].as_u64().expect("a number") as u32,
                replacement: mutant["replacement"].as_str().expect("a replacement").to_owned(),
            };
            let changes = genres.entry(mutant["genre"].as_str().expect("a genre").to_owned()).or_default();
            changes.entry((at("line"), at("column"))).or_default().push(change);
        }
        Self { genres, constant }
    }

    /// Returns the changes of a genre that begin where `span` begins.
    fn at(&self, genre: &str, span: Span) -> Option<Vec<Change>> {
        let LineColumn { line, column } = span.start();
        self.genres.get(genre)?.get(&(line, column + 1)).cloned()
    }

    /// Returns the changes of a function's value.
    fn values(&self, signature: &Signature, block: &Block) -> Option<Vec<Change>> {
        if signature.constness.is_some() || Opaque::is_in(signature) {
            return None;
        }
        self.at("FnValue", block.stmts.first()?.span())
    }

    /// Changes what is in a function, and what it returns.
    fn change_function(&mut self, signature: &mut Signature, block: &mut Block) {
        if !self.constant.iter().any(|name| signature.ident == name) {
            signature.constness = None;
        }
        if signature.constness.is_some() {
            return;
        }
        let values = self.values(signature, block);
        visit_mut::visit_block_mut(self, block);
        let Some(values) = values else { return };
        let returns = values.iter().map(|change| {
            let value: Expr = syn::parse_str(&change.replacement).expect("an expression");
            (change.number, quote!(return #value))
        });
        let choice = choose(returns.collect(), quote!());
        block.stmts.insert(0, parse_quote!(#choice));
    }

    fn change_binary(&self, expr: &mut Expr) {
        let Expr::Binary(binary) = expr else { return };
        let Some(changes) = self.at("BinaryOperator", binary.op.span()) else { return };
        let (left, right) = (&binary.left, &binary.right);
        if matches!(binary.op, BinOp::And(_) | BinOp::Or(_)) {
            if Let::is_in(left) || Let::is_in(right) {
                return;
            }
            // `a && b` and `a || b` with one copy of each operand, so that long chains stay short
            let number = changes[0].number;
            let other = quote!(match __mutant() { #number => { true } _ => { false } });
            *expr = match binary.op {
                BinOp::And(_) => {
                    parse_quote!(({ let __other = #other; if (#left) != __other { #right } else { __other } }))
                }
                _ => {
                    parse_quote!(({ let __other = #other; if (#left) == __other { #right } else { !__other } }))
                }
            };
            return;
        }
        let arms = changes.iter().map(|change| {
            let op: BinOp = syn::parse_str(&change.replacement).expect("an operator");
            (change.number, quote!((#left) #op (#right)))
        });
        let choice = choose(arms.collect(), quote!(#binary));
        *expr = parse_quote!((#choice));
    }

    fn change_unary(&self, expr: &mut Expr) {
        let Expr::Unary(unary) = expr else { return };
        let Some(changes) = self.at("UnaryOperator", unary.op.span()) else { return };
        let operand = &unary.expr;
        let choice = choose(vec![(changes[0].number, quote!(#operand))], quote!(#unary));
        *expr = parse_quote!((#choice));
    }

    fn change_struct(&self, expr: &mut Expr) {
        let Expr::Struct(all) = expr else { return };
        let mut arms = vec![];
        for (at, field) in all.fields.iter().enumerate() {
            for change in self.at("StructField", field.span()).unwrap_or_default() {
                let mut less = all.clone();
                less.fields = all
                    .fields
                    .iter()
                    .enumerate()
                    .filter(|(n, _)| *n != at)
                    .map(|(_, field)| field.clone())
                    .collect();
                if !less.fields.empty_or_trailing() {
                    less.fields.push_punct(syn::token::Comma::default());
                }
                arms.push((change.number, quote!(#less)));
            }
        }
        if !arms.is_empty() {
            let choice = choose(arms, quote!(#all));
            *expr = parse_quote!((#choice));
        }
    }
}

impl VisitMut for Mutator {
    fn visit_stmt_mut(&mut self, statement: &mut syn::Stmt) {
        if !is_planted(statement) {
            visit_mut::visit_stmt_mut(self, statement);
        }
    }

    fn visit_item_fn_mut(&mut self, function: &mut syn::ItemFn) {
        if !is_planted(function) {
            self.change_function(&mut function.sig, &mut function.block);
        }
    }

    fn visit_impl_item_fn_mut(&mut self, function: &mut syn::ImplItemFn) {
        if !is_planted(function) {
            self.change_function(&mut function.sig, &mut function.block);
        }
    }

    fn visit_trait_item_fn_mut(&mut self, function: &mut syn::TraitItemFn) {
        if let Some(block) = &mut function.default {
            self.change_function(&mut function.sig, block);
        }
    }

    fn visit_item_const_mut(&mut self, _: &mut syn::ItemConst) {}
    fn visit_impl_item_const_mut(&mut self, _: &mut syn::ImplItemConst) {}
    fn visit_trait_item_const_mut(&mut self, _: &mut syn::TraitItemConst) {}
    fn visit_item_static_mut(&mut self, _: &mut syn::ItemStatic) {}
    fn visit_variant_mut(&mut self, _: &mut syn::Variant) {}
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_generic_argument_mut(&mut self, _: &mut syn::GenericArgument) {}
    fn visit_expr_const_mut(&mut self, _: &mut syn::ExprConst) {}
    fn visit_expr_repeat_mut(&mut self, repeat: &mut syn::ExprRepeat) {
        self.visit_expr_mut(&mut repeat.expr);
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        visit_mut::visit_expr_mut(self, expr);
        self.change_binary(expr);
        self.change_unary(expr);
        self.change_struct(expr);
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        if is_planted(arm) {
            return;
        }
        let whole = self.at("MatchArm", arm.pat.span());
        let guard = arm.guard.as_ref().and_then(|(_, guard)| self.at("MatchArmGuard", guard.span()));
        visit_mut::visit_arm_mut(self, arm);
        let mut arms: Vec<_> =
            whole.unwrap_or_default().iter().map(|change| (change.number, quote!(false))).collect();
        for change in guard.unwrap_or_default() {
            let value: Expr = syn::parse_str(&change.replacement).expect("true or false");
            arms.push((change.number, quote!(#value)));
        }
        if arms.is_empty() || arm.guard.as_ref().is_some_and(|(_, guard)| Let::is_in(guard)) {
            return;
        }
        let original = arm.guard.as_ref().map_or_else(|| quote!(true), |(_, guard)| guard.to_token_stream());
        let choice = choose(arms, original);
        arm.guard = Some((syn::token::If::default(), parse_quote!((#choice))));
    }
}

/// Returns whether code has an effect only with a planted bug: its text before the first brace has
/// `#[cfg(debug_assertions)]`, or calls `has_bug`.
fn is_planted(code: &impl ToTokens) -> bool {
    let text = code.to_token_stream().to_string();
    let head = text.split('{').next().unwrap_or_default();
    head.contains("# [cfg (debug_assertions)]") || head.contains("has_bug (")
}

/// Returns an expression that is what the chosen mutant makes of it, or the original.
fn choose(arms: Vec<(u32, TokenStream)>, original: TokenStream) -> TokenStream {
    let otherwise = format_ident!("__original_{}", arms[0].0);
    let arms = arms.iter().map(|(number, changed)| quote!(#number => { #changed }));
    quote!(match __mutant() { #(#arms)* #otherwise => { #original } })
}

/// Finds `let` in a condition: its chain of `&&` is no expression of its own.
struct Let(bool);

impl Let {
    fn is_in(expr: &Expr) -> bool {
        let mut finder = Self(false);
        finder.visit_expr(expr);
        finder.0
    }
}

impl<'ast> Visit<'ast> for Let {
    fn visit_expr_let(&mut self, _: &'ast syn::ExprLet) {
        self.0 = true;
    }
    // A `let` in a block, a closure or a nested condition has ended when the operand has.
    fn visit_block(&mut self, _: &'ast Block) {}
    fn visit_expr_if(&mut self, _: &'ast syn::ExprIf) {}
    fn visit_expr_match(&mut self, _: &'ast syn::ExprMatch) {}
    fn visit_expr_closure(&mut self, _: &'ast syn::ExprClosure) {}
}

/// Finds `impl Trait` in a return type.
struct Opaque(bool);

impl Opaque {
    fn is_in(signature: &Signature) -> bool {
        let mut finder = Self(false);
        finder.visit_return_type(&signature.output);
        finder.0
    }
}

impl<'ast> Visit<'ast> for Opaque {
    fn visit_type_impl_trait(&mut self, _: &'ast syn::TypeImplTrait) {
        self.0 = true;
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("usage: schemata FILE [FUNCTION...] <MUTANTS");
    let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut json = String::new();
    std::io::stdin().read_to_string(&mut json).expect("the list of mutants");
    let mut file = syn::parse_file(&source).unwrap_or_else(|error| panic!("{path}: {error}"));
    Mutator::read(&json, arguments.collect()).visit_file_mut(&mut file);
    file.attrs.push(
        parse_quote!(#![allow(warnings, arithmetic_overflow, unconditional_panic, overflowing_literals)]),
    );
    file.items.push(parse_quote! {
        fn __mutant() -> u32 {
            static CHOSEN: ::std::sync::OnceLock<u32> = ::std::sync::OnceLock::new();
            *CHOSEN.get_or_init(|| ::std::env::var("MUTANT").map_or(0, |number| number.parse().expect("a number")))
        }
    });
    std::io::stdout().write_all(file.to_token_stream().to_string().as_bytes()).expect("standard output");
}
