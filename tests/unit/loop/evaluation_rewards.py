"""A reward that fails on wrong answers; worker processes import it."""


def picky(prompt, completion):
    if completion.text != prompt.answer:
        raise ValueError("no right answer")
    return 1.0
