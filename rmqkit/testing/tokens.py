"""Contract of TokenVerifier, for verifiers that know the users of some valid and invalid tokens.

def test_contract() -> None:
    check_token_verifier(MyVerifier(), valid={token: "alice"}, invalid=[expired])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rmqkit.errors import RequestRefused
from rmqkit.plugin.access import TokenVerifier

#: Texts that a remark may have by chance.
_SHORT = 8


def check_token_verifier(
    verifier: TokenVerifier, *, valid: Mapping[str, str], invalid: Iterable[str] = ()
) -> None:
    """Check a verifier: it names the user of each valid token, refuses the invalid ones of its kind without
    showing them, and neither knows nor fails on any other text, also one that begins like a token. Raises
    AssertionError at the first broken rule."""
    for token, user in valid.items():
        assert verifier.principal(token) == user, "a valid token names its user"
        assert verifier.principal(token) == user, "the second time, too"
    for token in invalid:
        found, remark = _asked(verifier, token)
        assert found is None, "an invalid token names nobody"
        assert token not in remark, "a refusal does not show the token"
    parts = st.sampled_from([*valid, "", "."])
    texts = st.text() | st.builds(lambda token, text: token[: len(token) // 2] + text, parts, st.text())

    @settings(
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(texts)
    def check(text: str) -> None:
        found, remark = _asked(verifier, text)
        assert found is None or text in valid, "nobody has made that token"
        assert len(text) < _SHORT or text not in remark, "a refusal does not show the token"

    check()


def _asked(verifier: TokenVerifier, text: str) -> tuple[str | None, str]:
    """The user, and the remark of a refusal. Raises what else the verifier raises."""
    try:
        return verifier.principal(text), ""
    except RequestRefused as error:
        return None, error.remark


__all__ = ["check_token_verifier"]
