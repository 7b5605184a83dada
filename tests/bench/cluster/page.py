from tests.bench.cluster.report import Run
def write_page(path, runs): pass
