import nvflare.client as flare
from nvflare.app_common.np.constants import NPConstants
from src.step import step

flare.init()
while flare.is_running():
    model = flare.receive()
    array = model.params[NPConstants.NUMPY_KEY]
    added = array + step(flare.get_site_name())
    params = {NPConstants.NUMPY_KEY: added}
    flare.send(flare.FLModel(params=params, metrics={"mean": float(array.mean())}))
