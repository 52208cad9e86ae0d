from examples.knowledge_transfer import main


def test_an_mlp_learns_digits_by_the_hypervectors_of_a_transformer():
    assert main() > 0.7
