from examples.knowledge_transfer import main


def test_an_mlp_learns_digits_by_the_hypervectors_of_a_transformer(capsys):
    assert main() > 0.7
    assert "by 1,275,000 bytes" in capsys.readouterr().out
