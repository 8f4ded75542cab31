//! Style of the page: inline, self-contained, for light and dark themes, phones and print.

pub(super) const STYLE: &str = "
:root{--back:#fff;--text:#1c2024;--soft:#5b6670;--grid:#d5dadf;--card:#f6f8fa;--good:#1a7f37;--part:#9a6700;--bad:#cf222e;
--c0:#0550ae;--c1:#bc4c00;--c2:#1a7f37;--c3:#8250df;--c4:#a40e26;--c5:#57606a}
@media(prefers-color-scheme:dark){:root{--back:#0f1419;--text:#e3e8ec;--soft:#98a4ae;--grid:#333d46;--card:#181f26;--good:#3fb950;
--part:#d29922;--bad:#ff7b72;--c0:#6cb6ff;--c1:#f69d50;--c2:#57d16e;--c3:#c297ff;--c4:#ff8182;--c5:#a8b3bd}}
*{box-sizing:border-box}
html{color-scheme:light dark;background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif;-webkit-text-size-adjust:100%}
body{max-width:80rem;margin:0 auto;padding:1rem}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0}
h2{font-size:1.3rem;margin:2rem 0 .5rem;padding-top:.5rem;border-top:2px solid var(--grid)}
h2 .seen{font-size:.95rem;font-weight:400}
h3{font-size:1.05rem;margin:0 0 .5rem}
a{color:var(--c0)}
p{margin:.4rem 0}
dl.run{display:flex;flex-wrap:wrap;gap:.2rem 1.6rem;font-size:.85rem;margin:.6rem 0}
dl.run div{display:flex;gap:.4rem}
dt{color:var(--soft)}
dd{margin:0}
nav,.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:.3rem 1.5rem;align-items:start}
nav{margin:1rem 0;font-size:.9rem}
nav ul{list-style:none;margin:0;padding:0}
nav li{display:flex;justify-content:space-between;gap:1rem;border-bottom:1px solid var(--grid);padding:.15rem 0}
nav section>p>a{font-weight:600}
.state{white-space:nowrap}
article{background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:.8rem 1rem;margin:.8rem 0}
.columns{columns:26rem 2;column-gap:1.5rem}
.columns>p{orphans:2;widows:2}
.columns>figure{margin-top:0}
.reason{border-left:3px solid var(--part);padding-left:.7rem;margin:.4rem 0;break-inside:avoid}
.verdict{display:inline-block;font-size:.85rem;font-weight:600;border:1px solid;border-radius:1rem;padding:0 .6rem;margin-left:.4rem;white-space:nowrap}
.holds{color:var(--good)}.partly{color:var(--part)}.no,.failed{color:var(--bad)}.open{color:var(--soft)}
.term{color:var(--soft);font-size:.85rem;text-transform:uppercase;letter-spacing:.03em;margin-right:.4rem}
figure{margin:.4rem 0;break-inside:avoid;background:var(--back);border:1px solid var(--grid);border-radius:6px;padding:.5rem}
figure svg{width:100%;height:auto;display:block}
figcaption{font-size:.85rem;font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:.1rem .9rem;font-size:.85rem;margin:.2rem 0 0;padding:0;list-style:none}
.legend i{display:inline-block;width:1.4rem;vertical-align:middle;margin-right:.35rem;border-top:3px solid}
.legend i.paper{border-top:2px dashed}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;margin:0}
th,td{text-align:left;vertical-align:top;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--grid)}
th{color:var(--soft);font-weight:600}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
code{font:.85em ui-monospace,monospace;background:var(--back);border:1px solid var(--grid);border-radius:4px;padding:.05rem .3rem;overflow-wrap:anywhere}
ul.checks{list-style:none;padding:0;margin:.2rem 0 .5rem;font-size:.9rem}
ul.checks li{padding-left:1.4rem;text-indent:-1.4rem}
tr,li{break-inside:avoid}
.seen{color:var(--soft)}
details summary{cursor:pointer;color:var(--soft);font-size:.9rem}
@media print{@page{margin:12mm}html{font-size:10.5px}body{max-width:none;padding:0}h2,h3,summary{break-after:avoid}
details::details-content{content-visibility:visible}}
";
