//! What an engine reads off a template's text before it renders anything.
//!
//! - Purpose: whether message content reaches the template as one text or as a list of parts. A template that
//!   loops over the content of a message gets parts; the engines differ in which loops they recognise.
//! - Sources: vLLM 0.32.0 `renderers/hf.py`; SGLang 0.5.23 `parser/jinja_template_utils.py`.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{Call, CallArg, Expr, Macro, Stmt};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

/// What an expression reaches for, filters, tests and slices aside.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Access<'a> {
    /// `name`.
    Var(&'a str),
    /// `name.key` or `name['key']`.
    Member(&'a str, String),
    Other,
}

impl Access<'_> {
    fn is_var(&self, name: &str) -> bool {
        matches!(self, Self::Var(var) if *var == name)
    }

    fn is_member(&self, name: &str, key: &str) -> bool {
        matches!(self, Self::Member(var, member) if *var == name && member == key)
    }
}

fn access<'a>(expr: &Expr<'a>) -> Access<'a> {
    let var = |expr: &Expr<'a>| if let Expr::Var(var) = expr { Some(var.id) } else { None };
    match expr {
        Expr::Filter(filter) => filter.expr.as_ref().map_or(Access::Other, access),
        Expr::Test(test) => access(&test.expr),
        Expr::Slice(slice) => access(&slice.expr),
        Expr::Var(var) => Access::Var(var.id),
        Expr::GetAttr(get) => match var(&get.expr) {
            Some(var) => Access::Member(var, get.name.to_owned()),
            None => Access::Other,
        },
        Expr::GetItem(get) => match (var(&get.expr), &get.subscript_expr) {
            (Some(var), Expr::Const(key)) => match key.value.as_str() {
                Some(key) => Access::Member(var, key.to_owned()),
                None => Access::Other,
            },
            _ => Access::Other,
        },
        _ => Access::Other,
    }
}

#[derive(Debug)]
struct Loop<'a> {
    over: Access<'a>,
    /// The loop variable; `None` where there are several.
    target: Option<&'a str>,
    /// The macros around it, outermost first.
    macros: Vec<usize>,
}

/// An argument of a call, with its name where it has one.
type Argument<'a> = (Option<&'a str>, Access<'a>);

/// A template's loops, assignments, macros and calls, in the order of its text.
#[derive(Debug, Default)]
struct Facts<'a> {
    loops: Vec<Loop<'a>>,
    sets: Vec<(Option<&'a str>, Access<'a>)>,
    macros: Vec<(&'a str, Vec<&'a str>)>,
    calls: Vec<(&'a str, Vec<Argument<'a>>)>,
    inside: Vec<usize>,
}

impl<'a> Facts<'a> {
    fn of(source: &'a str) -> Option<Self> {
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        let root = parse(source, "chat", syntax.build().ok()?).ok()?;
        let mut facts = Self::default();
        facts.statement(&root);
        Some(facts)
    }

    fn body(&mut self, body: &[Stmt<'a>]) {
        for statement in body {
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &Stmt<'a>) {
        match statement {
            Stmt::Template(template) => self.body(&template.children),
            Stmt::EmitExpr(emit) => self.expr(&emit.expr),
            Stmt::ForLoop(node) => {
                let target = if let Expr::Var(var) = &node.target { Some(var.id) } else { None };
                self.loops.push(Loop { over: access(&node.iter), target, macros: self.inside.clone() });
                self.expr(&node.iter);
                self.body(&node.body);
                self.body(&node.else_body);
                self.maybe(node.filter_expr.as_ref());
            }
            Stmt::IfCond(node) => {
                self.expr(&node.expr);
                self.body(&node.true_body);
                self.body(&node.false_body);
            }
            Stmt::WithBlock(node) => {
                for (_, value) in &node.assignments {
                    self.expr(value);
                }
                self.body(&node.body);
            }
            Stmt::Set(node) => {
                let target = if let Expr::Var(var) = &node.target { Some(var.id) } else { None };
                self.sets.push((target, access(&node.expr)));
                self.expr(&node.expr);
            }
            Stmt::SetBlock(node) => {
                self.maybe(node.filter.as_ref());
                self.body(&node.body);
            }
            Stmt::AutoEscape(node) => self.body(&node.body),
            Stmt::FilterBlock(node) => self.body(&node.body),
            Stmt::Macro(node) => self.macro_body(node),
            Stmt::CallBlock(node) => {
                self.call(&node.call);
                self.body(&node.macro_decl.body);
            }
            Stmt::Do(node) => self.call(&node.call),
            _ => {}
        }
    }

    fn macro_body(&mut self, node: &Macro<'a>) {
        let parameters =
            node.args.iter().filter_map(|arg| if let Expr::Var(var) = arg { Some(var.id) } else { None });
        self.macros.push((node.name, parameters.collect()));
        self.inside.push(self.macros.len() - 1);
        node.defaults.iter().for_each(|expr| self.expr(expr));
        self.body(&node.body);
        self.inside.pop();
    }

    fn maybe(&mut self, expr: Option<&Expr<'a>>) {
        if let Some(expr) = expr {
            self.expr(expr);
        }
    }

    fn call(&mut self, call: &Call<'a>) {
        if let Expr::Var(var) = &call.expr {
            let arguments = call.args.iter().filter_map(|arg| match arg {
                CallArg::Pos(expr) => Some((None, access(expr))),
                CallArg::Kwarg(name, expr) => Some((Some(*name), access(expr))),
                _ => None,
            });
            self.calls.push((var.id, arguments.collect()));
        }
        self.expr(&call.expr);
        self.args(&call.args);
    }

    fn args(&mut self, args: &[CallArg<'a>]) {
        for arg in args {
            let (CallArg::Pos(expr)
            | CallArg::Kwarg(_, expr)
            | CallArg::PosSplat(expr)
            | CallArg::KwargSplat(expr)) = arg;
            self.expr(expr);
        }
    }

    fn expr(&mut self, expr: &Expr<'a>) {
        match expr {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(node) => {
                self.expr(&node.expr);
                for part in [&node.start, &node.stop, &node.step] {
                    self.maybe(part.as_ref());
                }
            }
            Expr::UnaryOp(node) => self.expr(&node.expr),
            Expr::BinOp(node) => {
                self.expr(&node.left);
                self.expr(&node.right);
            }
            Expr::Compare(node) => {
                self.expr(&node.expr);
                node.ops.iter().for_each(|op| self.expr(&op.expr));
            }
            Expr::IfExpr(node) => {
                self.expr(&node.test_expr);
                self.expr(&node.true_expr);
                self.maybe(node.false_expr.as_ref());
            }
            Expr::Filter(node) => {
                self.maybe(node.expr.as_ref());
                self.args(&node.args);
            }
            Expr::Test(node) => {
                self.expr(&node.expr);
                self.args(&node.args);
            }
            Expr::GetAttr(node) => self.expr(&node.expr),
            Expr::GetItem(node) => {
                self.expr(&node.expr);
                self.expr(&node.subscript_expr);
            }
            Expr::Call(node) => self.call(node),
            Expr::List(node) => node.items.iter().for_each(|item| self.expr(item)),
            Expr::Tuple(node) => node.items.iter().for_each(|item| self.expr(item)),
            Expr::Map(node) => node.keys.iter().chain(&node.values).for_each(|item| self.expr(item)),
        }
    }

    /// The names under which a message of the list is looped over. `None` where vLLM's search fails.
    fn message_names(&self) -> Option<Vec<&'a str>> {
        let mut lists = vec!["messages"];
        let mut known = BTreeSet::from(["messages"]);
        let mut at = 0;
        while let Some(list) = lists.get(at).copied() {
            at += 1;
            for (target, _) in self.sets.iter().filter(|(_, value)| value.is_var(list)) {
                if known.insert((*target)?) {
                    lists.push((*target)?);
                }
            }
        }
        let over = |node: &&Loop<'a>| lists.iter().any(|list| node.over.is_var(list));
        self.loops.iter().filter(over).map(|node| node.target).collect()
    }

    /// The parameters of a macro that some call hands a message's content.
    fn content_parameters(&self, index: usize, messages: &[&str]) -> Vec<&'a str> {
        let Some((name, parameters)) = self.macros.get(index) else { return Vec::new() };
        let content = |value: &Access<'_>| messages.iter().any(|m| value.is_member(m, "content"));
        let mut out = Vec::new();
        for (_, arguments) in self.calls.iter().filter(|(callee, _)| callee == name) {
            for (at, (keyword, value)) in arguments.iter().enumerate() {
                let parameter = keyword.map_or_else(
                    || parameters.get(at).copied(),
                    |keyword| parameters.iter().copied().find(|p| *p == keyword),
                );
                out.extend(parameter.filter(|_| content(value)));
            }
        }
        out
    }
}

/// Whether vLLM hands this template content as a list of parts.
pub(crate) fn vllm_parts(source: &str) -> bool {
    let Some(facts) = Facts::of(source) else { return false };
    let Some(messages) = facts.message_names() else { return false };
    let parameters: Vec<Vec<&str>> =
        (0..facts.macros.len()).map(|at| facts.content_parameters(at, &messages)).collect();
    let found = facts.loops.iter().find(|node| {
        if messages.iter().any(|m| node.over.is_member(m, "content")) {
            return true;
        }
        let Access::Var(over) = node.over else { return false };
        let around = node.macros.iter().rev().filter_map(|at| parameters.get(*at));
        let parameter = around.clone().find(|p| !p.is_empty()).is_some_and(|p| p.contains(&over));
        parameter || (node.macros.is_empty() && over == "content")
    });
    found.is_some_and(|node| node.target.is_some())
}

/// Whether SGLang does.
pub(crate) fn sglang_parts(source: &str) -> bool {
    if ["image", "audio", "video", "vision"].iter().any(|word| source.contains(word)) {
        return true;
    }
    let Some(facts) = Facts::of(source) else { return false };
    let content = |node: &Loop<'_>| ["message", "msg", "m"].iter().any(|m| node.over.is_member(m, "content"));
    facts.loops.iter().any(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are those of vLLM 0.32's `_detect_content_format` and SGLang's
    /// `detect_jinja_template_content_format` on the same texts.
    #[test]
    fn tells_which_content_a_template_takes() {
        for (source, vllm, sglang) in [
            ("{% for m in messages %}{{ m.content }}{% endfor %}", false, false),
            (
                "{% for m in messages %}{% for c in m['content'] %}{{ c.text }}{% endfor %}{% endfor %}",
                true,
                true,
            ),
            (
                "{% for x in messages %}{% for c in x.content %}{{ c.text }}{% endfor %}{% endfor %}",
                true,
                false,
            ),
            (
                "{% set l = messages[1:] %}{% for x in l %}{% for c in x.content|list %}{% endfor %}{% endfor %}",
                true,
                false,
            ),
            (
                "{% macro r(a, b) %}{% for c in b %}{% endfor %}{% endmacro %}{% for x in messages %}{{ r(1, x.content) }}{% endfor %}",
                true,
                false,
            ),
            (
                "{% macro r(b) %}{% for c in b %}{% endfor %}{% endmacro %}{% for x in messages %}{{ r(b=x.content) }}{% endfor %}",
                true,
                false,
            ),
            (
                "{% macro r(content) %}{% for c in content %}{% endfor %}{% endmacro %}{% for x in messages %}{{ r(x.role) }}{% endfor %}",
                false,
                false,
            ),
            (
                "{% for x in messages %}{% set content = x.content %}{% for c in content %}{% endfor %}{% endfor %}",
                true,
                false,
            ),
            ("{% for a, b in messages %}{% for c in b.content %}{% endfor %}{% endfor %}", false, false),
            ("{% for m in messages %}{{ m.content }}{% endfor %}{# no image #}", false, true),
            ("{% for m in messages %}", false, false),
        ] {
            assert_eq!((vllm_parts(source), sglang_parts(source)), (vllm, sglang), "{source}");
        }
    }
}
