"""Stock Python clients behind one small set of verbs, so that one suite asks all of them."""
