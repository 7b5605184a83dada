"""`make demo`: the main job on real input, judged by pandas."""
