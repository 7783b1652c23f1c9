"""Before Ray connects: whose cluster it is, and whether it may be used. What the user's environment says may be stale."""

import pytest

from harness.dispatch.ray.connect import Answer, Refused, choose_authentication, token

TOKEN = "t" * 32


def head(accepts):
    """A head that takes `accepts` (None: anybody; False: nobody is there)."""

    def ask(bearer):
        if accepts is False:
            return Answer.UNREACHABLE
        return Answer.WELCOME if accepts in (None, bearer) else Answer.UNAUTHENTICATED

    return ask


@pytest.mark.parametrize("environ", [{}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "stale"}], ids=["no token", "a stale token"])
def test_an_open_cluster_on_this_host_is_joined_without_a_token(environ):
    choose_authentication("127.0.0.2:6379", environ, head(None))
    assert "disabled" == environ["RAY_AUTH_MODE"]


def test_an_open_cluster_elsewhere_is_refused():
    with pytest.raises(Refused, match="it is open"):
        choose_authentication("10.0.0.7:6379", {"RAY_AUTH_TOKEN": TOKEN}, head(None))


@pytest.mark.parametrize("mode", [None, "disabled", "token"])
def test_a_cluster_with_a_token_is_joined_by_it(mode):
    environ = {"RAY_AUTH_TOKEN": TOKEN} | ({"RAY_AUTH_MODE": mode} if mode else {})
    choose_authentication("10.0.0.7:6379", environ, head(TOKEN))
    assert {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN} == environ


@pytest.mark.parametrize(
    ("environ", "accepts", "found"),
    [
        ({"HOME": "/nowhere"}, TOKEN, "it asks for a token, and there is none here"),
        ({"RAY_AUTH_TOKEN": "wrong"}, TOKEN, "token rejected"),
        ({}, False, "nobody answers within 3 s"),
    ],
    ids=["no token", "wrong token", "nobody there"],
)
def test_what_stands_in_the_way_is_said(environ, accepts, found):
    with pytest.raises(Refused, match=found):
        choose_authentication("10.0.0.7:6379", environ, head(accepts))


class TestTheToken:
    def test_is_that_of_the_variable_then_of_the_file_named_then_of_home(self, tmp_path):
        named, home = tmp_path / "named", tmp_path / "home"
        (home / ".ray").mkdir(parents=True)
        named.write_text("named\n")
        (home / ".ray/auth_token").write_text("homely")
        everything = {"RAY_AUTH_TOKEN": "said", "RAY_AUTH_TOKEN_PATH": str(named), "HOME": str(home)}
        assert "said" == token(everything)
        assert "named" == token({name: everything[name] for name in ("RAY_AUTH_TOKEN_PATH", "HOME")})
        assert "homely" == token({"HOME": str(home)})

    @pytest.mark.parametrize("environ", [{}, {"RAY_AUTH_TOKEN": " "}, {"RAY_AUTH_TOKEN_PATH": "/nowhere"}, {"HOME": "/nowhere"}])
    def test_is_none_where_nothing_says_one(self, environ):
        assert None is token({"HOME": "/nowhere", **environ})
